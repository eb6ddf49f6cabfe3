"""A checkpoint's tensors side by side in memory that two processes see: one fills it, the other writes the file.

The memory is a file without a name (memfd): it counts as the processes' own, needs no /dev/shm, and is gone with them.

A GPU's tensors come to it while the GPU computes: two small pieces of page-locked memory take turns. Without them a
copy would delay the kernels queued after it. To page-lock a whole checkpoint takes 0.25 s a gigabyte, and no kernel
starts meanwhile (one H200, driver 580.159.04: epochs of 0.16 s took 0.21 s).
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from seatrial.train.errors import DiskFullError, TrainError
from seatrial.train.saving.atomic import write_file

#: Bytes that a tensor's beginning is a multiple of.
ALIGNED_BYTES = 64
#: Key of what stands for a tensor between the processes: where it begins, and its type, shape and strides.
_MARK = "seatrial tensor"


class Arena:
    """Memory for one checkpoint."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        make = getattr(os, "memfd_create", None) or ctypes.CDLL(None).memfd_create  # builds for an old libc lack it
        self.file = os.fdopen(make(b"seatrial-checkpoint", 0), "r+b")
        try:
            self.file.truncate(size_bytes)
        except OSError as error:  # of ulimit -f: the checkpoint's file would be as large
            raise DiskFullError(f"cannot write a checkpoint: {error.strerror}", fix="ulimit -f unlimited") from error
        self.memory = mmap.mmap(self.file.fileno(), size_bytes)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8)

    def close(self) -> None:
        """Free the memory."""
        self.file.close()
        del self.bytes, self.memory


def sizes_of(value: Any) -> dict[torch.device, int]:
    """Return the bytes that an arena needs for a nesting's tensors on each device."""
    sizes: dict[torch.device, int] = {}

    def add(tensor: Tensor) -> None:
        sizes[tensor.device] = sizes.get(tensor.device, 0) + -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES

    map_tensors(add, value)
    return sizes


def size_of(value: Any) -> int:
    """Return the bytes that an arena needs for the tensors of a nesting."""
    return max(sum(sizes_of(value).values()), mmap.PAGESIZE)


def fill(arena: Arena, value: Any, copy: Callable[[Tensor, Tensor], object]) -> Any:
    """Queue a copy of every tensor; return the nesting with a dictionary of ``_MARK`` in place of each.

    ``copy``: gets (to, from) and does all on the stream that it chooses: a tensor made dense here, on the stream of the
    moment, might be read before it is there.
    """
    begin = 0

    def placed(tensor: Tensor) -> dict[str, Any]:
        nonlocal begin
        stride = tensor.stride() if _is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        place = {_MARK: (begin, tensor.dtype, tuple(tensor.shape), stride)}
        if tensor.numel():
            copy(read(arena.memory, place), tensor)
        begin += -(-tensor.nbytes // ALIGNED_BYTES) * ALIGNED_BYTES
        return place

    return map_tensors(placed, value)


def read(memory: mmap.mmap, value: Any) -> Any:
    """Return the nesting with tensors over the memory: each a storage of its own, as torch.save writes them."""
    if isinstance(value, dict) and _MARK in value:
        begin, dtype, shape, stride = value[_MARK]
        if not math.prod(shape):
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=begin).as_strided(shape, stride)
    return map_items(partial(read, memory), value)


def map_tensors(change: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Change every tensor in a nesting, together with those at the same place in ``others``."""
    if isinstance(value, Tensor):
        return change(value, *others)
    return map_items(partial(map_tensors, change), value, *others)


def map_items(change: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Change each item of a dictionary, list or tuple, as ``map_tensors`` does; all else stays as it is."""
    if isinstance(value, Mapping):
        return {key: change(item, *(other[key] for other in others)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [change(item, *rest) for item, *rest in zip(value, *others, strict=True)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _is_dense(tensor: Tensor) -> bool:
    """Return True if its elements lie side by side, in any order."""
    sizes = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    expected = 1
    for stride, size in sizes:
        if stride != expected:
            return False
        expected *= size
    return True


#: A piece is full after 0.3 ms on an H200 (50 GB/s), and copied on in 3 ms.
PIECE_BYTES = 16 * 2**20


@dataclass
class _Piece:
    """Page-locked bytes, and their parts: (destination, part), complete once the events have happened."""

    memory: Tensor
    parts: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    used: int = 0
    events: list[torch.cuda.Event] = field(default_factory=list)

    def empty(self) -> None:
        """Copy all parts to their destinations, once they are complete."""
        for event in self.events:
            event.synchronize()
        for to, part in self.parts:
            to.copy_(part)
        self.parts, self.events, self.used = [], [], 0


class Staging:
    """While the GPU fills one piece, the other is copied to where its tensors belong."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        pinned = torch.cuda.is_available()
        self._pieces = [_Piece(torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=pinned)) for _ in range(2)]
        self._streams: set[torch.cuda.Stream] = set()

    def copy(self, to: Tensor, tensor: Tensor, stream: torch.cuda.Stream | None) -> None:
        """Queue a copy on the stream: ``to`` is of the same shape, type and strides, and whole after ``finish``.

        ``tensor`` may be in any order; if its elements do not lie side by side, ``to`` is as torch makes new ones.
        """
        if stream is not None:
            self._streams.add(stream)
        with torch.cuda.stream(stream):
            if tensor.stride() != to.stride():
                tensor = tensor.contiguous()
            source, target, done = _bytes_of(tensor), _bytes_of(to), 0
            while done < len(source):
                if self._pieces[0].used == len(self._pieces[0].memory):
                    self._turn()
                piece = self._pieces[0]
                count = min(len(piece.memory) - piece.used, len(source) - done)
                part = piece.memory[piece.used : piece.used + count]
                part.copy_(source[done : done + count], non_blocking=True)
                piece.parts.append((target[done : done + count], part))
                piece.used, done = piece.used + count, done + count

    def finish(self) -> None:
        """Wait until every copy is where it belongs."""
        self._turn()
        self._turn()
        self._streams.clear()

    def _turn(self) -> None:
        """Continue in the other piece."""
        for stream in self._streams:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
            self._pieces[0].events.append(event)
        self._pieces.reverse()
        self._pieces[0].empty()


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a dense tensor's bytes in memory order, [bytes]."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class HostCopies:
    """Copies a GPU's tensors to the host while it goes on computing.

    They come by a stream of their own into page-locked memory, which is kept for the next time: on the default stream,
    or into ordinary memory, the copy would stand in the way of the kernels that are queued after it.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._kept: dict[int, Tensor] = {}
        self._staging: Staging | None = None

    def take(self, value: Any, ready: torch.cuda.Event | None = None) -> Any:
        """Copy every tensor to the CPU after the event ``ready``; a GPU's copies hold until the next call."""
        number = count()
        copied = map_tensors(
            lambda tensor: self._copy(tensor, next(number), ready) if tensor.is_cuda else tensor, value
        )
        for stream in self._streams.values():
            stream.synchronize()
        return copied

    def fill(self, held: Arena, value: Any, ready: torch.cuda.Event | None = None) -> Any:
        """Copy every tensor into an arena after ``ready``; return the result of ``fill`` when all of it is there."""

        def copy(to: Tensor, tensor: Tensor) -> None:
            if tensor.is_cuda:
                self._staging = self._staging or Staging()
                self._staging.copy(to, tensor, self._stream(tensor.device, ready))
            else:
                to.copy_(tensor)

        try:
            layout = fill(held, value, copy)
            if self._staging is not None:
                self._staging.finish()
        except BaseException:
            self._staging = None  # what is in its pieces must not come into the next checkpoint
            raise
        return layout

    def _stream(self, device: torch.device, ready: torch.cuda.Event | None) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if ready is not None:
            self._streams[device].wait_event(ready)
        return self._streams[device]

    def _copy(self, tensor: Tensor, number: int, ready: torch.cuda.Event | None) -> Tensor:
        stream = self._stream(tensor.device, ready)
        kept = self._kept.get(number)
        if kept is None or (kept.shape, kept.dtype, kept.stride()) != (tensor.shape, tensor.dtype, tensor.stride()):
            kept = self._kept[number] = torch.empty_like(tensor, device="cpu", pin_memory=True)
        with torch.cuda.stream(stream):
            kept.copy_(tensor, non_blocking=True)
        return kept


# The process that writes checkpoints shares no lock and no core's time with the training's Python. It reads lines of
# JSON from its standard input, each followed by a pickle, and answers with one line each. Its input closed, it finishes
# what it has and ends: a training that is killed leaves a whole checkpoint or the one before.

#: Environment of the process: no GPU, one thread; nothing of a measuring hook.
_QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
_BEGIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from seatrial.train.saving.arena import serve
serve()
"""


class WriterProcess:
    """The other end: starts the process and hands it arenas."""

    def __init__(self) -> None:
        # A session of its own: a Ctrl-C or a SIGTERM for the training must not end a write.
        argv, pipe = [sys.executable, "-I", "-c", _BEGIN, json.dumps(sys.path)], subprocess.PIPE
        env = {**os.environ, **_QUIET}
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, start_new_session=True, env=env)

    @property
    def pid(self) -> int:
        """Return the ID of the process."""
        return self._process.pid

    def write(self, path: Path, held: Arena, state: Any) -> None:
        """Write a checkpoint from an arena to the disk. Raises DiskFullError; ProcessLookupError: it is not reached."""
        layout = pickle.dumps(state)
        order = {"path": str(path), "size": held.size_bytes, "bytes": len(layout)}
        where = f"/proc/{os.getpid()}/fd/{held.file.fileno()}"
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
                with suppress(BrokenPipeError):
                    pipe.close()
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
        state = read(memory, pickle.loads(layout))
        write_file(Path(order["path"]), lambda file: torch.save(state, file))
    except TrainError as error:
        return {"error": error.message, "fix": error.fix or ""}
    except (OSError, RuntimeError, ValueError) as error:
        return {"unable": f"{type(error).__name__}: {error}"}
    return {}
