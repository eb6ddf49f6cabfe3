"""Capture the behaviour of a command line: structure that is frozen, prose that is approved apart.

Only public surfaces are used (the command line, its JSON, the state folder of ended runs), so that captures of two
trees can be compared although every module was renamed between them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_api import api_server
from golden import cases

HERE = Path(__file__).parent

#: argv behind ``seatrial``, working directory and environment → the ended process.
Runner = Callable[[Sequence[str], Path, Mapping[str, str]], "subprocess.CompletedProcess[str]"]

#: Keys of JSON whose values are sentences, and those that depend on the clock or on the machine.
PROSE = frozenset(
    [
        "reason",
        "warnings",
        "evidence",
        "title",
        "words",
        "cause",
        "fix",
        "summary",
        "text",
        "label",
        "note",
        "advice",
        "sentence",
        "headline",
    ]
)
VOLATILE = frozenset(["created_at", "judged_at", "git_commit", "pids", "own_wheel"])

_MASKS = (
    (re.compile(r"\b\d{8}-\d{6}-[a-z0-9]{4}\b"), "RUN"),
    (re.compile(r"agent-[0-9a-f]{16}"), "agent-DIGEST"),
    (re.compile(r"(seatrial/[\w.-]+:)[0-9a-f]{20}\b"), r"\1TAG"),
    (re.compile(r"(ARG FILES=)[0-9a-f]+"), r"\1DIGEST"),
    (re.compile(r"(projects/[\w.-]+-)[0-9a-f]{16}\b"), r"\1KEY"),
    (re.compile(r"(--pids-limit )\d+"), r"\1N"),
    (re.compile(r"[A-Za-z0-9+/=]{200,}"), "BASE64"),
    (re.compile(r"(seatrial\.content: )[0-9a-f]{16}"), r"\1DIGEST"),
    (re.compile(r"/tmp/seatrial-podman-\d+/\w+"), "PODMAN"),
    (re.compile(r"as of \d+ s ago"), "as of N s ago"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"CPython [\d.]+ of the command line, sha256:[0-9a-f]{64}"), "CPYTHON"),
    (re.compile(r"/python-[0-9a-f]{16}"), "/python-DIGEST"),
)

#: The default memory limit, which follows from this machine's memory.
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_LIMIT = _MEMORY - max(_MEMORY // 20, 512 << 20)


class Capture:
    """Runs cases with a home, state and engine of their own.

    Attributes:
        sentences: prose found so far, by area.
    """

    def __init__(self, folder: Path, run: Runner, python: str = sys.executable) -> None:
        self.folder = folder
        self._run = run
        self.sentences: dict[str, set[str]] = {}
        for name in ("home", "state", "cache", "bin"):
            (folder / name).mkdir(parents=True)
        for engine in ("docker", "podman"):
            program = folder / "bin" / engine
            program.write_text(cases.ENGINE.format(python=python, info=HERE.parent / "recorded" / cases.INFO[engine]))
            program.chmod(0o755)
        self._environ = {
            **{name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "LANG", "LD_LIBRARY_PATH")},
            "PATH": f"{folder / 'bin'}:{Path(python).parent}:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "SEATRIAL_STATE": str(folder / "state"),
            "SEATRIAL_LEASES": str(folder / "leases"),
            "PIP_NO_INDEX": "1",
            "COLUMNS": "1000",
            "NO_COLOR": "1",
        }
        prefix = Path(python).parent.parent
        self._texts = {str(folder): "ROOT", str(prefix): "PYTHON"}

    def run(self, words: Sequence[str], cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one command line; fail on a traceback of ours."""
        ended = self._run(words, cwd, {**self._environ, **environ})
        assert "Traceback (most recent" not in ended.stderr or "train.py" in ended.stderr, ended.stderr
        return ended

    def plans(self, project: Path) -> Iterator[tuple[str, Any]]:
        """Yield the plan as JSON of each command line of cases.PLANS, and its engine's command."""
        with api_server(self.folder, cases.CLUSTER) as (kubeconfig, _):
            for line in cases.PLANS:
                words = shlex.split(line)
                ended = self.run(["plan", "--json", *words], project, KUBECONFIG=str(kubeconfig))
                yield line, self._outcome("plan", ended)
            for line in cases.COMMANDS:
                ended = self.run(["plan", *shlex.split(line)], project, KUBECONFIG=str(kubeconfig))
                yield line, self.masked(_command(ended.stdout)) if ended.returncode == 0 else ended.returncode

    def corpus(self, folder: Path) -> Iterator[tuple[str, Any]]:
        """Yield the plan as JSON of each project of the corpus that is planned without a package index."""
        for expected in sorted(folder.glob("*/expected.toml")):
            name = expected.parent.name
            found = cases.toml(expected.read_text())
            copy = self.folder / "corpus" / name
            shutil.copytree(expected.parent / "project", copy, symlinks=True)
            words = shlex.split(found["command"])
            gpus = [] if "--target" in words else ["--gpus", "none"]
            argv = ["plan", "--on", "docker", *gpus, "--json", *words]
            yield name, self._outcome("plan", self.run(argv, copy / found.get("folder", ".")))

    def explanations(self, messages: Path) -> Iterator[tuple[str, Any]]:
        """Yield the IDs of the findings in each third recorded message, in their order."""
        for number, message in enumerate(cases.toml(messages.read_text())["message"][::3]):
            name = f"{number:03} {message['text'].splitlines()[0][:60]}"
            ended = self.run(["explain", "--json", message["text"]], self.folder)
            yield name, [found["id"] for found in json.loads(ended.stdout or "[]")]

    def receipts(self, packed: Path, scripts: Path) -> Iterator[tuple[str, Any]]:
        """Yield the receipt of each recorded run; the runs are of the reference and end when this tree lists them."""
        project = self.folder / "project"
        project.mkdir()
        for script in scripts.rglob("*.py"):
            shutil.copy(script, project)
        (project / "first.py").write_text("print('makes the folder of the project')\n")
        self.run(["run", "--on", "local", "--gpus", "none", "first.py"], project)
        (records,) = (self.folder / "state" / "projects").glob("project-*/runs")
        for name, files in read_runs(packed).items():
            record = records / files.pop("run_id")
            record.mkdir()
            for file, text in files.items():
                own = text.replace("/golden-root/state/evidence", str(record)).replace(
                    "projects/KEY/runs", f"projects/{records.parent.name}/runs"
                )
                (record / file).write_text(own.replace("/golden-root", str(self.folder)))
            yield name, self._outcome("receipt", self.run(["runs", "show", record.name, "--json"], project))

    def exits(self, project: Path) -> Iterator[tuple[str, Any]]:
        """Yield the exit code of each command line that is refused, and its message as prose."""
        for line in cases.REFUSED:
            ended = self.run(shlex.split(line), project)
            message = ended.stderr.strip().replace("\n", "\n    ")
            shown = self.masked(f"{line}\n    {message}")
            self._keep("refusals", "\n".join(shown) if isinstance(shown, list) else shown)
            yield line, ended.returncode

    def help(self) -> None:
        """Keep the help of every verb as prose."""
        listing = self.run(["--help"], self.folder, COLUMNS="80").stdout
        self._keep("help", listing)
        for verb in re.findall(r"^(?:[A-Z][a-z]+ +| {9})([a-z0-9]+) {2,}\S", listing, re.M):
            self._keep("help", self.run([verb, "--help"], self.folder, COLUMNS="80").stdout)

    def masked(self, value: Any, area: str = "") -> Any:
        """Return a value without empty parts and machine-dependent parts; keep its sentences apart."""
        if isinstance(value, str):
            for old, new in sorted(self._texts.items(), key=lambda item: -len(item[0])):
                value = value.replace(old, new)
            for pattern, new in _MASKS:
                value = pattern.sub(new, value)
            value = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "HOST", value).replace(str(_LIMIT), "HOST")
            value = value.replace(str(_LIMIT // 2), "HOST")
            return value.splitlines() if "\n" in value else value
        if isinstance(value, list):
            return [self.masked(each, area) for each in value]
        if not isinstance(value, dict):
            return "HOST" if value in (_LIMIT, _LIMIT // 2) else value
        kept = {}
        for key, each in value.items():
            sentences = [each] if isinstance(each, str) else each
            if key in PROSE and isinstance(sentences, list) and _are_sentences(sentences):
                for sentence in sentences:
                    self._keep(area, str(self.masked(sentence)))
            elif key not in VOLATILE and each not in (None, [], {}, ""):
                kept[self.masked(key)] = self.masked(each, area)
        return kept

    def _outcome(self, area: str, ended: subprocess.CompletedProcess[str]) -> Any:
        try:
            return {"exit": ended.returncode, **self.masked(json.loads(ended.stdout), area)}
        except json.JSONDecodeError:
            self._keep(area, str(self.masked(ended.stderr.strip())))
            return {"exit": ended.returncode}

    def _keep(self, area: str, sentence: str) -> None:
        self.sentences.setdefault(area, set()).add(sentence)


def _are_sentences(parts: Sequence[Any]) -> bool:
    """Return whether these are texts and not IDs; an ID has no space."""
    return bool(parts) and all(isinstance(part, str) for part in parts) and any(" " in part for part in parts)


def _command(text: str) -> list[str]:
    """Return the engine's command of ``plan --verbose``, or the whole text of ``--as`` and ``--manifests``."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if re.match(r"\S+ (container )?run \\?", line)), 0)
    return lines[start:]


def read_runs(packed: Path) -> dict[str, dict[str, str]]:
    """Return name → file → text of recorded runs; ``run_id`` beside the files."""
    with gzip.open(packed, "rt") as file:
        return {run["name"]: run["files"] for run in map(json.loads, file)}


def capture_all(capture: Capture, tests: Path = HERE.parent) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each area's name and what was captured of it, by case."""
    for name, text in cases.FILES.items():
        path = capture.folder / "projects" / "matrix" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    matrix = capture.folder / "projects" / "matrix"
    yield "plans", dict(capture.plans(matrix))
    yield "corpus", dict(capture.corpus(tests / "corpus"))
    yield "refusals", dict(capture.exits(matrix))
    yield "receipts", dict(capture.receipts(HERE / "runs.jsonl.gz", tests / "lab" / "bound"))
    yield "explain", dict(capture.explanations(tests / "findings" / "messages.toml"))
    capture.help()


def dumped(value: Any) -> str:
    """Return JSON for a golden file, one value a line."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
