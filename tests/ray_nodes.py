"""A real Ray cluster of two nodes on this machine, for the tests of ``--engine ray``. Ended by PID, never by name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from here import free_ports

#: Enough for messages and a small archive; /dev/shm is shared by all tests.
STORE_BYTES = 90_000_000


class RayNodes:
    """The head, and further nodes; each ``ray start --block`` is a session of its own.

    Args:
        environ: of every node.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        [self.port] = free_ports()
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets' paths are short
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def head(self, *, cpus: int) -> None:
        where = ["--head", "--port", str(self.port), "--include-dashboard", "false", "--temp-dir", str(self.folder)]
        self._start("head", [*where, "--num-cpus", str(cpus), "--num-gpus", "0"], {})

    def node(
        self,
        name: str,
        *,
        cpus: int,
        gpus: int = 0,
        environ: Mapping[str, str] | None = None,
        hide: Sequence[Path] = (),
    ) -> None:
        """A further node.

        Args:
            hide: folders that it sees empty, as on another machine's disk. Needs root.
        """
        words = ["--address", self.address, "--num-cpus", str(cpus), "--num-gpus", str(gpus)]
        self._start(name, words, environ or {}, hide)

    def _start(self, name: str, words: Sequence[str], environ: Mapping[str, str], hide: Sequence[Path] = ()) -> None:
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        argv += ["--object-store-memory", str(STORE_BYTES), "--node-name", name, *words]
        if hide:
            mounts = " && ".join(f"mount -t tmpfs none '{folder}'" for folder in hide)
            argv = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *argv]
        log = self.folder / f"{name}.log"
        self.folder.mkdir(exist_ok=True)
        with log.open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    argv,
                    env={**self.environ, **environ},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        until = time.monotonic() + 240
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            assert self.processes[-1].poll() is None, log.read_text()
            time.sleep(0.2)

    def close(self) -> None:
        """SIGTERM to each, and SIGKILL to what is left of its session."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()
            for pid in _session(process.pid):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def _session(leader: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
        except ProcessLookupError:
            continue
    return found
