"""A container's log: followed through its engine or in conmon's file, and kept in the run's record."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from seatrial import frames
from seatrial.backends.base import Echo
from seatrial.backends.log_sink import Cursor, Sink, Turn
from seatrial.errors import DiskError, os_errors
from seatrial.system import command
from seatrial.system.text import as_typed

_CHUNK_BYTES = 256 * 1024
#: Interval between looks at a file that has not grown.
_LOOK_S = 0.1
#: Opens a log, to follow it until the container ends if the argument is True, else to its end as it is now.
OpenLog = Callable[[bool], "command.Piped | K8sFile"]
#: A log goes on for a moment after its container is reported to have ended.
DRAIN_S = 10.0
#: Interval between attempts of another process to become the collector; also its last wait, when it must.
_TURN_S = 1.0
_LAST_TURN_S = 0.05


class K8sFile:
    """Reads stdout from a log file, or raises OSError; ``goes_on``: its writer lives; None: read only what is there."""

    def __init__(self, path: Path, goes_on: Callable[[], bool] | None) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._goes_on, self._last_look = goes_on, goes_on is None
        self._stopping, self._whole, self._held = threading.Event(), False, b""

    def read(self) -> bytes:
        """Return the next lines of stdout; b"" at the end, after ``end``, and when the disk fails."""
        while not self._stopping.is_set():
            try:
                data = os.read(self._file, _CHUNK_BYTES)
            except OSError:
                return b""
            if data:
                whole, newline, self._held = (self._held + data).rpartition(b"\n")
                if newline and (text := b"".join(map(text_of, whole.split(b"\n")))):
                    return text
            elif self._last_look or self._goes_on is None:
                self._whole = True
                return b""
            elif not self._goes_on():
                self._last_look = True  # all that was written before it ended is there by now
            else:
                self._stopping.wait(_LOOK_S)
        return b""

    @property
    def ended(self) -> bool:
        return self._whole or self._stopping.is_set()

    def end(self) -> int:
        """Stop reading; return 0 if the log had been read to its end, else -1."""
        self._stopping.set()
        return 0 if self._whole else -1

    def close(self) -> None:
        os.close(self._file)


def text_of(line: bytes) -> bytes:
    """Return a line's part of stdout; b"" for another stream, or a line that conmon did not write."""
    fields = line.split(b" ", 3)
    if len(fields) < 3 or fields[1] != b"stdout" or fields[2] not in (b"F", b"P"):
        return b""
    return (fields[3] if len(fields) == 4 else b"") + (b"\n" if fields[2] == b"F" else b"")


@contextmanager
def collecting(
    open_log: OpenLog, folder: Path, is_over: Callable[[], bool], echo: Echo, *, starts_again: bool = False
) -> Iterator[None]:
    """Collect the log while open, in this process or another; at the end all of it has come.

    ``is_over``: whether the container has ended, so that its log ends by itself. ``echo``: gets a sentence when the
    disk is full. ``starts_again``: its engine may start it again, and its log goes on then.
    Raises DiskError: at the end, what is left could not be written.
    """
    collector = _Collector(open_log, folder, echo, is_over if starts_again else lambda: True)
    thread = threading.Thread(target=collector.follow, name="collector", daemon=True)
    thread.start()
    try:
        yield
        if over := is_over():
            collector.wait(DRAIN_S)
        collector.stop()
        thread.join()
        collector.drain(2 * DRAIN_S if over else 0.0)  # the next collector of a live run reads the rest
    finally:
        collector.stop()
        thread.join()
        collector.close()


class _Collector:
    def __init__(self, open_log: OpenLog, folder: Path, echo: Echo, is_over: Callable[[], bool]) -> None:
        self._open, self._folder, self._echo, self._is_over = open_log, folder, echo, is_over
        self._turn = Turn(folder)
        self._stopping, self._whole = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._follower: command.Piped | K8sFile | None = None

    def follow(self) -> None:
        """Wait for the turn, then collect until the log ends or ``stop``."""
        while not self._turn.take():
            if self._stopping.wait(_TURN_S):
                return
        while not self._stopping.is_set():
            with self._lock:
                if self._stopping.is_set():
                    return
                try:
                    self._follower = self._open(True)
                except OSError:  # the file has gone: so has its container
                    return
            try:
                self._read(self._follower)
            except OSError as error:
                self._echo(f"The output is not being recorded: {error.strerror}. The engine keeps it for now")
                return
            finally:
                exit_code = self._follower.end()
                self._follower.close()
            if exit_code == 0 and not self._stopping.is_set() and self._is_over():
                self._whole.set()
                return
            self._stopping.wait(_TURN_S)  # the engine broke off, e.g. because it was started anew

    def wait(self, seconds: float) -> None:
        """Wait for the end of the log; ``drain`` waits for another process."""
        deadline_s = time.monotonic() + seconds
        while self._turn.mine and not self._whole.wait(_LAST_TURN_S) and time.monotonic() < deadline_s:
            if self._follower is not None and self._follower.ended:
                return

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
            if self._follower is not None and not self._whole.is_set():
                self._follower.end()

    def drain(self, wait_s: float) -> None:
        """Read the rest. Another collector has ``wait_s`` to finish first. Raises DiskError."""
        with os_errors(DiskError, f"Cannot write the run's record {self._folder}", f"df -h {as_typed(self._folder)}"):
            deadline_s = time.monotonic() + wait_s
            while not self._turn.take() and time.monotonic() < deadline_s:
                time.sleep(_LAST_TURN_S)
            if self._turn.mine and not self._whole.is_set():
                with contextlib.suppress(FileNotFoundError), contextlib.closing(self._open(False)) as log:
                    self._read(log)

    def close(self) -> None:
        self._turn.give_back()

    def _read(self, log: command.Piped | K8sFile) -> None:
        """Read from where the last reader stopped to the end of the log. Raises OSError when the disk is full."""
        cursor = Cursor(self._folder / "log.cursor", 4)  # bytes of the log, and of the three files of the record
        sink = Sink(self._folder, again=True)
        try:
            done, *sizes = cursor.numbers
            sink.cut(sizes)
            decoder, skip, held = frames.FrameDecoder(), done, b""
            read = log.read if isinstance(log, K8sFile) else partial(os.read, log.stdout, _CHUNK_BYTES)
            while data := read():
                if skip:
                    data, skip = data[skip:], max(0, skip - len(data))
                *lines, held = (held + data).split(b"\n")
                done += sum(map(len, lines)) + len(lines)
                for line in lines:
                    sink.take(decoder, line)
                if lines:
                    sink.flush()
                if lines and not decoder.waiting:
                    cursor.save(done, *sink.sizes())
        finally:
            cursor.close()
            with contextlib.suppress(OSError):  # what could not be written comes again
                sink.close()
