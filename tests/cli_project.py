"""A temporary project and the real command line run in it. Import as ``from cli_project import Project``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fork_server
from pace import until
from seatrial import events
from seatrial.runs.store import project_key

#: Where the engine has no network of its own for builds, e.g. without a bridge.
CONFIG = '[image]\nbuild_network = "host"\n'

#: What starts the command line.
PROGRAM = [sys.executable, "-m", "seatrial"]

#: Verbs that ask before they act on such a file.
ASKING = ("run", "up", "shell", "sweep", "build", "export", "tune")


class Project:
    """A folder with a seatrial.toml; every command in it is a process of its own (of ``cli``: forked, see fork_server).

    Args:
        folder: its name is in the image's tag, so projects of one name and the same packages share an image.
        backend: ``docker``, ``podman`` or ``local``.
        engine: the engine's program and its global options; () for local.
        user: uid and gid, and groups, to run the command line as.

    Attributes:
        trusted: what its file asks for (CONFIG's network, a webhook …) is allowed with ``--trust``: a test has no
            terminal for questions.
    """

    trusted = True

    def __init__(
        self,
        folder: Path,
        backend: str,
        environ: Mapping[str, str],
        engine: Sequence[str] = (),
        user: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.backend = backend
        self.environ = dict(environ)
        self.engine = list(engine)
        self.user = dict(user or {})
        self.state = Path(self.environ["SEATRIAL_STATE"])
        self.program = [self.environ.get("PYTHON", sys.executable), *PROGRAM[1:]]
        folder.mkdir(parents=True, exist_ok=True)
        self.write("seatrial.toml", CONFIG)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def cli(
        self, *words: str, exit_code: int | None = 0, timeout_s: float = 300, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """A command to its end; fails unless it exits with ``exit_code`` (None: any)."""
        argv, env = self.argv(*words), {**self.environ, **environ}
        imported = env.get("PYTHONPATH") == os.environ.get("PYTHONPATH")  # else another copy of the package is imported
        forks = imported and not self.user and "SEATRIAL_TEST_UNFORKED" not in env
        if forks and argv[: len(PROGRAM)] == PROGRAM:
            ended = fork_server.server().run(argv[len(PROGRAM) :], self.folder, env, timeout_s)
        else:
            options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **self.user}
            ended = subprocess.run(argv, cwd=self.folder, env=env, timeout=timeout_s, **options)
        shown = f"seatrial {' '.join(words)}: exit {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        assert exit_code is None or ended.returncode == exit_code, shown
        ours = "\nTraceback (most recent call last)" in f"\n{ended.stderr}"  # a pod's has its rank in front
        assert not ours or "train.py" in ended.stderr, shown
        return ended

    def argv(self, verb: str, *words: str) -> list[str]:
        """The command line, with ``--trust`` where the verb would ask."""
        return [*self.program, verb, *(["--trust"] if self.trusted and verb in ASKING else []), *words]

    def run(self, *words: str, exit_code: int | None = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        """``seatrial run`` on this backend, to its end."""
        return self.cli("run", "--on", self.backend, *words, exit_code=exit_code, **environ)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """``seatrial run``, not waited for."""
        return self.begin("run", "--on", self.backend, *words)

    def begin(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """A command, not waited for."""
        return subprocess.Popen(
            self.argv(*words),
            cwd=self.folder,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **self.user,
        )

    def detach(self, *words: str) -> str:
        """``seatrial run --detach``; the run's ID, once its target has printed ``ready``."""
        run_id = self.run(*words, "--detach").stdout.strip()
        self.wait_for_output("ready")
        return run_id

    @property
    def runs(self) -> list[Path]:
        """Records of the runs, oldest first."""
        records = (self.state / "projects" / project_key(self.folder.resolve()) / "runs").glob("*-*")

        def began(record: Path) -> tuple[str, float]:
            """To the second by its name, then by when its plan was written."""
            plan = record / "plan.json"
            return record.name.rpartition("-")[0], plan.stat().st_mtime if plan.exists() else 0.0

        return sorted(records, key=began)

    @property
    def last(self) -> Path:
        return self.runs[-1]

    @property
    def place(self) -> Path:
        """Return the last run's folder in the project, with its outputs."""
        return self.folder / ".seatrial" / "runs" / self.last.name

    def kept(self) -> list[Path]:
        """Every file that is kept of the last run."""
        return [path for top in (self.last, self.place) for path in top.rglob("*") if path.is_file()]

    def receipt(self) -> dict[str, Any]:
        """Return it for the last run."""
        loaded: dict[str, Any] = json.loads((self.last / "receipt.json").read_bytes())
        return loaded

    def events(self, type: str) -> list[dict[str, Any]]:
        """Return it for the last run."""
        return list(events.of_type(events.read(str((self.last / "events.jsonl").resolve()))[0], events.KINDS[type]))

    def output(self, stream: str = "stdout") -> str:
        """Return it for the last run."""
        path = self.last / f"{stream}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_output(self, text: str) -> None:
        self.wait_for(lambda: bool(self.runs) and text in self.output())

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 300) -> None:
        until(condition, lambda: f"stderr: {self.runs and self.output('stderr')}; it", timeout_s)

    def handle(self) -> str:
        """Container ID, or the agent's PID, of the last run."""
        identifier: str = json.loads((self.last / "handle.json").read_bytes())["id"]
        return identifier

    def containers(self) -> list[str]:
        """IDs of all containers of this project's runs."""
        if not self.engine:
            return []
        found: list[str] = []
        for run in self.runs:
            listing = [*self.engine, "ps", "--all", "--quiet", "--filter", f"label=seatrial.run={run.name}"]
            found += subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
        return found

    def alive(self) -> list[int]:
        """PIDs, on this machine, of processes that carry the mark of the last run."""
        mark = f"SEATRIAL_RUN_ID={self.last.name}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)]

    def clean(self) -> None:
        """End what a failed test has left running."""
        if any(not (run / "summary.json").exists() for run in self.runs):
            for run in self.runs:
                self.cli("runs", "rm", "--force", run.name, exit_code=None)
        for container in self.containers():
            subprocess.run([*self.engine, "rm", "--force", container], capture_output=True)


def environment(folder: Path) -> dict[str, str]:
    """This process's, with caches, state and leases of its own, and lines that are not wrapped."""
    inherited = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return {
        **inherited,
        "COLUMNS": "200",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "SEATRIAL_STATE": str(folder / "state"),
        "SEATRIAL_LEASES": str(folder / "leases"),
    }


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile, or is another user's
        return b""
