"""The process that writes checkpoints: what it does shares no lock and no core's time with the training's Python.

It reads lines of JSON from its standard input, each followed by a pickle, and answers with one line each. Its input
closed, it finishes what it has and ends: a training that is killed leaves a whole checkpoint or the one before.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import torch

from seatrial.train.errors import DiskFullError, TrainError
from seatrial.train.saving import arena
from seatrial.train.saving.atomic import write_file

#: Environment of the process: no GPU, one thread; nothing of a measuring hook.
_QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
_BEGIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from seatrial.train.saving.writer_process import serve
serve()
"""


class WriterProcess:
    """The other end: starts the process and hands it arenas."""

    def __init__(self) -> None:
        # A session of its own: a Ctrl-C or a SIGTERM for the training must not end a write.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BEGIN, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **_QUIET},
        )

    @property
    def pid(self) -> int:
        """Return the ID of the process."""
        return self._process.pid

    def write(self, path: Path, held: arena.Arena, state: Any) -> None:
        """Write a checkpoint whose tensors are in an arena; returns when it is on the disk.

        Raises:
            DiskFullError: the file could not be written.
            ProcessLookupError: the process is gone, or cannot reach the memory.
        """
        layout = pickle.dumps(state)
        order = {"path": str(path), "size": held.size_bytes, "bytes": len(layout)}
        where = f"/proc/{os.getpid()}/fd/{held.descriptor}"
        try:
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None and stdout is not None
            stdin.write(json.dumps({**order, "memory": where}).encode() + b"\n" + layout)
            stdin.flush()
            answer = stdout.readline()
        except (BrokenPipeError, ValueError) as error:
            raise ProcessLookupError("the process that writes checkpoints is gone") from error
        if not answer:
            raise ProcessLookupError("the process that writes checkpoints is gone")
        result = json.loads(answer)
        if "unable" in result:
            raise ProcessLookupError(result["unable"])
        if "error" in result:
            raise DiskFullError(result["error"], fix=result["fix"])

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        self._process.wait()


def serve() -> None:
    """Write the ordered checkpoints until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(5)
    torch.set_num_threads(1)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    while line := stdin.readline():
        answer = _written(json.loads(line), stdin)
        try:
            stdout.write(json.dumps(answer).encode() + b"\n")
            stdout.flush()
        except BrokenPipeError:  # the training is gone; the file is whole
            return


def _written(order: dict[str, Any], stdin: BinaryIO) -> dict[str, str]:
    layout = stdin.read(order["bytes"])
    try:
        with open(order["memory"], "r+b") as file:  # noqa: PTH123
            memory = mmap.mmap(file.fileno(), order["size"])
        state = arena.read(memory, pickle.loads(layout))
        write_file(Path(order["path"]), lambda file: torch.save(state, file))
    except TrainError as error:
        return {"error": error.message, "fix": error.fix or ""}
    except (OSError, RuntimeError, ValueError) as error:
        return {"unable": f"{type(error).__name__}: {error}"}
    return {}
