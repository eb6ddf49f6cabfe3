"""A run's output, read back in the order it was written, and its caller's input, passed on while it is followed.

The agent keeps stdout and stderr apart and complete in two files, and notes every chunk in ``output.idx`` as
``<unix time> <1|2> <bytes>``: following the index interleaves both exactly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seatrial.events import Lines
from seatrial.frames import encode_input, encode_size
from seatrial.system.host import in_foreground, window_size
from seatrial.system.nofollow import open_regular

if TYPE_CHECKING:  # those who only read output import no models
    from seatrial.job.plan import Plan
    from seatrial.runs.run import Run

Stream = Literal["stdout", "stderr"]

_STREAMS: dict[bytes, Stream] = {b"1": "stdout", b"2": "stderr"}
#: Most digits of a chunk's size.
_MOST_DIGITS = 16
#: Bytes read at once of a log; a run may have printed gigabytes.
_CHUNK_BYTES = 1 << 20
#: Interval between looks at the logs while somebody types: a later echo feels late.
TYPING_INTERVAL_S = 0.02
#: Interval between checks of the window's size, and of the run's end.
_LOOK_S = 0.1

_INPUT_BYTES = 16 * 1024

_INPUT_FLAGS, _LOCAL_FLAGS = 0, 3


class OutputReader:
    """Reads the new output since the last call, from a run's folder; safe while it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = Lines(str(folder / "output.idx"), skips=False)
        self._offsets: dict[Stream, int] = {"stdout": 0, "stderr": 0}

    def new(self) -> Iterator[tuple[Stream, bytes]]:
        """Yield (stream, bytes) in the order they were printed, until nothing is left for now."""
        for stream, count, _ in self._new_chunks():
            yield from self._take(stream, count)

    def rest(self) -> Iterator[tuple[Stream, bytes]]:
        """Yield the output beyond the index: a killed agent, or a full disk, leaves the index short."""
        for stream in self._offsets:
            yield from self._take(stream, None)

    def skip_to_last(self, chunks: int) -> None:
        """Skip to the last ``chunks`` chunks; the agent writes about one a line. A line's end alone makes no chunk."""
        kept: deque[tuple[Stream, int, int]] = deque()
        long = 0
        for chunk in self._new_chunks():
            kept.append(chunk)
            long += chunk[1] > 1
            while kept and (long > chunks or kept[0][1] <= 1):
                stream, count, _ = kept.popleft()
                self._offsets[stream] += count
                long -= count > 1
        if kept:
            self._index.offset = kept[0][2]

    def _new_chunks(self) -> Iterator[tuple[Stream, int, int]]:
        """Yield (stream, bytes, where its line begins in the index)."""
        begin = self._index.offset
        for line in self._index.new():
            fields = line.split()
            if len(fields) == 3 and fields[1] in _STREAMS and fields[2].isdigit() and len(fields[2]) < _MOST_DIGITS:
                yield _STREAMS[fields[1]], int(fields[2]), begin
            begin = self._index.offset

    def _take(self, stream: Stream, count: int | None) -> Iterator[tuple[Stream, bytes]]:
        with contextlib.suppress(FileNotFoundError), open_regular(self._folder / f"{stream}.log") as file:
            self._offsets[stream] = file.seek(min(self._offsets[stream], os.fstat(file.fileno()).st_size))
            while count is None or count > 0:
                data = file.read(_CHUNK_BYTES if count is None else min(count, _CHUNK_BYTES))
                if not data:
                    return
                self._offsets[stream] += len(data)
                if count is not None:
                    count -= len(data)
                yield stream, data


class OfRank:
    """Passes on only the lines of one rank, which begin with ``[rank1]: `` where a run has several nodes."""

    def __init__(self, rank: int, write: Callable[[Stream, bytes], None]) -> None:
        self._mark, self._write = b"[rank%d]: " % rank, write
        self._unfinished: dict[Stream, bytes] = {}

    def __call__(self, stream: Stream, data: bytes) -> None:
        *whole, self._unfinished[stream] = (self._unfinished.get(stream, b"") + data).split(b"\n")
        for line in whole:
            if line.startswith(self._mark):
                self._write(stream, line + b"\n")


@contextmanager
def passing_on(run: Run, plan: Plan) -> Iterator[None]:
    """Pass standard input to the target, if its plan has that; restore the terminal at the end."""
    if plan.agent.input is None:
        yield
        return
    terminal = plan.agent.terminal
    typed = terminal is not None and 0 in terminal.streams
    relay = _Relay(run, typed=typed, sized=terminal is not None)
    with _keys() if typed else contextlib.nullcontext():
        relay.start()
        try:
            yield
        finally:
            relay.stop()
            run.input.unlink(missing_ok=True)


@contextmanager
def _keys() -> Iterator[None]:
    """Read keys as they are pressed, without an echo; Ctrl-C, Ctrl-\\ and Ctrl-Z act as without a terminal."""
    before = termios.tcgetattr(0)

    def take(_signal: int = 0, _frame: object = None) -> None:
        if not in_foreground(0):
            return
        modes = termios.tcgetattr(0)
        modes[_INPUT_FLAGS] &= ~(termios.ICRNL | termios.IXON)
        modes[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        termios.tcsetattr(0, termios.TCSADRAIN, modes)

    # Back from Ctrl-Z, the shell has set the terminal anew. In the background, reading fails and does not stop us.
    handlers = ((signal.SIGCONT, take), (signal.SIGTTIN, signal.SIG_IGN))
    is_main = threading.current_thread() is threading.main_thread()
    earlier = [(number, signal.signal(number, handler)) for number, handler in handlers] if is_main else []
    take()
    try:
        yield
    finally:
        if in_foreground(0):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in earlier:
            signal.signal(number, handler)


class _Relay(threading.Thread):
    """Reads stdin while the run takes it; ``typed``: on our terminal; ``sized``: the target's have the same size."""

    def __init__(self, run: Run, *, typed: bool, sized: bool) -> None:
        super().__init__(name="typing", daemon=True)  # a run that has ended does not wait for input
        self._run, self._typed, self._sized = run, typed, sized
        self._done = threading.Event()

    def run(self) -> None:
        if (pipe := self._open()) is None:
            return
        try:
            self._pass_on(pipe)
        except (BrokenPipeError, BlockingIOError):  # the target takes no more
            pass
        finally:
            os.close(pipe)  # the end of the target's input

    def stop(self) -> None:
        self._done.set()
        if self._typed:  # it must not take a key that is the shell's
            self.join(timeout=2 * _LOOK_S)

    def _open(self) -> int | None:
        """Open the pipe, once the agent has opened its end; None if the run has ended first."""
        while not self._done.is_set():
            try:
                return os.open(self._run.input, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    return None
                time.sleep(_LOOK_S / 2)
        return None

    def _pass_on(self, pipe: int) -> None:
        shown = None
        while not self._done.is_set():
            if self._sized and (size := window_size(1)) != shown:
                shown = size
                self._write(pipe, encode_size(size[1], size[0]))
            # Input that the target does not take is not read: it may be for the next command of a script.
            takes = select.select([], [pipe], [], _LOOK_S)[1]
            if not takes or not select.select([0], [], [], _LOOK_S)[0]:
                continue
            try:
                data = os.read(0, _INPUT_BYTES)
            except OSError:  # in the background
                self._done.wait(_LOOK_S)
                continue
            if not data:
                return
            self._write(pipe, encode_input(data))

    def _write(self, pipe: int, message: bytes) -> None:
        while message and not self._done.is_set():
            if select.select([], [pipe], [], _LOOK_S)[1]:
                with contextlib.suppress(BlockingIOError):
                    message = message[os.write(pipe, message) :]
