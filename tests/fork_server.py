"""The command line in processes that need not import it first: forked from one that has, as often as tests ask.

A start of ``python -m seatrial plan`` takes 1.2 s of CPU time, of which 0.9 are imports. What forks off here has its
own environment, working directory and streams, and ends through the interpreter as ever. Tests of streams, terminals,
signals and of the start itself start a new interpreter.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Rooms that the command line's own process never imports.
NOT_OURS = ("agent", "compat", "train", "recipes", "dashboard", "programs", "slimming", "in_image", "__main__")


class ForkServer:
    """The process that is forked from; it ends with ours."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="seatrial-fork-"))
        self.address = str(self._folder / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen(16)
        os.set_inheritable(listener.fileno(), True)
        argv = [sys.executable, __file__, str(listener.fileno())]
        # Pipes, as those that come in their place: Python's streams remember whether one can seek.
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process = subprocess.Popen(argv, pass_fds=[listener.fileno()], cwd="/", **streams)
        listener.close()
        atexit.register(self.close)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)
        shutil.rmtree(self._folder)

    def _last_words(self) -> str:
        """Its exit code, negative for a signal's number, and what it printed."""
        code = self._process.poll()
        printed = self._process.stderr.read().decode() if code is not None and self._process.stderr else "it still runs"
        return f"exit code {code}; {printed[-2000:]}"

    def run(
        self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """``python -m seatrial`` with these words to its end, as ``subprocess.run`` with its output caught."""
        pipes = [os.pipe() for _ in range(2)]
        caught = [_Caught(read_end) for read_end, _ in pipes]
        with socket.socket(socket.AF_UNIX) as requested:
            requested.settimeout(timeout_s)
            try:
                requested.connect(self.address)
            except ConnectionRefusedError:
                raise RuntimeError(f"the fork server has ended: {self._last_words()}") from None
            request = json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode()
            write_ends = array.array("i", [write_end for _, write_end in pipes])
            requested.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, write_ends)])
            requested.sendall(request)
            for write_end in write_ends:
                os.close(write_end)
            pid = int.from_bytes(_exactly(requested, 8), "big")
            ended_by_s = time.monotonic() + timeout_s
            try:
                status = int.from_bytes(_exactly(requested, 8), "big")
                for each in caught:
                    each.join(max(0.0, ended_by_s - time.monotonic()))
                if any(each.is_alive() for each in caught):
                    raise TimeoutError
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(argv), timeout_s, *(each.data for each in caught)) from None
        out, err = (each.data.decode() for each in caught)
        return subprocess.CompletedProcess(list(argv), os.waitstatus_to_exitcode(status), out, err)


class _Caught(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._descriptor, self.data = descriptor, b""
        self.start()

    def run(self) -> None:
        with os.fdopen(self._descriptor, "rb", buffering=0) as file:
            while data := file.read(65536):
                self.data += data


@functools.cache
def server() -> ForkServer:
    """This test process's one."""
    return ForkServer()


def _exactly(requested: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := requested.recv(size - len(data))):
            raise EOFError("the fork server has ended")
        data += more
    return data


def _serve(listener: socket.socket) -> None:
    """Returns only in a process that has been forked off, with all set for the command line; exits when stdin ends."""
    while True:
        ready, _, _ = select.select([listener, 0], [], [], 1.0)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if 0 in ready:
            os._exit(0)
        if listener in ready:
            requested, _ = listener.accept()
            if os.fork() == 0:
                return _be_parent(requested)
            requested.close()


def _be_parent(requested: socket.socket) -> None:
    """Fork once more, and report how that child ends."""
    head, control, _, _ = requested.recvmsg(8, socket.CMSG_SPACE(8))
    streams = array.array("i", control[0][2])
    request = json.loads(_exactly(requested, int.from_bytes(head, "big")))
    if (pid := os.fork()) == 0:
        requested.close()
        return _become(request, streams)
    for stream in streams:
        os.close(stream)
    try:
        requested.sendall(pid.to_bytes(8, "big"))
        requested.sendall(os.waitpid(pid, 0)[1].to_bytes(8, "big"))
    finally:
        os._exit(0)


def _become(request: dict[str, object], streams: Sequence[int]) -> None:
    """The process that the request asks for."""
    for number, stream in zip((0, 1, 2), (os.open(os.devnull, os.O_RDONLY), *streams), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["seatrial", *request["argv"]]
    sys.path[0] = str(Path.cwd())
    random.seed()


if __name__ == "__main__":
    import seatrial
    from seatrial.cli import main

    for module in pkgutil.walk_packages(seatrial.__path__, "seatrial."):
        if not set(module.name.split(".")) & set(NOT_OURS):
            importlib.import_module(module.name)
    # What forks off here would look through 400 MB of modules and models at its end, and so copy them: with that set
    # aside, `runs ls` took a third of the time.
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
