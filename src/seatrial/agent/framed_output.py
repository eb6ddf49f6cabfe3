"""Write to the agent's own stdout without ever blocking: whole frames, or none."""

import os
import select
import threading
import time
from collections import deque
from typing import Deque, Dict, Optional, Tuple

from seatrial import frames

#: A pipe that polls as writable takes this many bytes without blocking. Source: pipe(7), PIPE_BUF.
_SAFE_WRITE_BYTES = 4096

#: Bytes kept for a reader that is slower than the target, before the target is made to wait.
_BACKLOG_BYTES = 256 * 1024

#: Evidence kept for a reader that stalls: a day of samples of one GPU.
_KEPT_BYTES = 64 * 1024 * 1024

#: A reader that takes nothing for this long does not hold the target up any more.
STALL_S = 5.0


class PassThrough:
    """Our own stdout or stderr. It survives a missing reader, and waits at most STALL_S for one that stalls.

    What is written in one call is let go as a whole or not at all.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._queue: Deque[Tuple[bytes, bool]] = deque()
        self._begun = b""  # what is left of a write that the reader has taken a part of
        self._bytes = 0
        self._closed = False
        self.dropped_bytes = 0
        self.shows_prompts = False  # everything is passed on at once, finished lines or not

    @property
    def waiting(self) -> bool:
        """Return whether bytes are left that the reader has not taken yet."""
        return self._bytes > 0

    def write(self, data: bytes, *, keep: bool = False) -> None:
        """Pass on what the reader takes now; wait for it only when too much has piled up.

        Args:
            keep: not to be let go when the reader stalls, unless _KEPT_BYTES of it wait.
        """
        if self._closed or not data:
            return
        self._queue.append((data, keep))
        self._bytes += len(data)
        self.flush(0)
        while self._bytes > _BACKLOG_BYTES:
            before = self._bytes
            self.flush(0 if self.dropped_bytes else STALL_S)
            if self._bytes == before:  # stalled: from now on it only gets what it takes at once, and what is kept
                self._let_go()
                return

    def _let_go(self) -> None:
        kept: Deque[Tuple[bytes, bool]] = deque()
        free = _KEPT_BYTES - len(self._begun)
        for data, keep in self._queue:
            if keep and len(data) <= free:
                free -= len(data)
                kept.append((data, keep))
            else:
                self._bytes -= len(data)
                self.dropped_bytes += len(data)
        self._queue = kept

    def flush(self, wait_s: float) -> None:
        """Write until all is out or the reader has taken nothing for ``wait_s``."""
        while self._bytes and not self._closed:
            if not self._poll.poll(wait_s * 1000):
                return
            if not self._begun:
                self._begun = self._queue.popleft()[0]
            try:
                written = os.write(self._descriptor, self._begun[:_SAFE_WRITE_BYTES])
                self._begun = self._begun[written:]
                self._bytes -= written
            except BlockingIOError:
                return
            except OSError:  # EPIPE, EIO, ENOSPC: nobody will read this
                self._closed = True
                self._queue.clear()
                self._begun, self._bytes = b"", 0


_KINDS: Dict[int, bytes] = {1: frames.STDOUT, 2: frames.STDERR}

#: An unfinished line on a terminal, a prompt or a progress bar, goes out once it is so old. A bar that is drawn anew
#: a thousand times a second still makes twenty pieces of it.
PROMPT_S = 0.05


class LogStream(PassThrough):
    """Frames to stdout, whole ones only. Safe for two threads."""

    def __init__(self) -> None:
        super().__init__(1)
        self._lock = threading.RLock()

    def write(self, data: bytes, *, keep: bool = False) -> None:
        """Send whole frames. ``keep``: evidence, which waits for a reader that stalls, where output is dropped."""
        with self._lock:
            super().write(data, keep=keep)

    def flush(self, wait_s: float) -> None:
        with self._lock:
            super().flush(wait_s)


class FramedOutput:
    """Passes one output stream into the log stream; without a log stream a PassThrough does it.

    Attributes:
        shows_prompts: a person looks on: lines that are not finished are sent as well.
    """

    def __init__(self, number: int, log: LogStream) -> None:
        self._splitter = frames.LineSplitter(_KINDS[number])
        self._log = log
        self.shows_prompts = False
        self._held_since_s: Optional[float] = None

    @property
    def waiting(self) -> bool:
        return self._log.waiting or self._held_since_s is not None

    @property
    def dropped_bytes(self) -> int:
        return self._log.dropped_bytes

    def write(self, data: bytes) -> None:
        """Send the lines that are complete."""
        framed = self._splitter.feed(data)
        if framed:
            self._log.write(framed)
        if not self.shows_prompts or not self._splitter.holds:
            self._held_since_s = None
        elif self._held_since_s is None or framed:
            self._held_since_s = time.monotonic()

    def flush(self, wait_s: float) -> None:
        """Flush like PassThrough; with time to wait it is the end, and an unfinished line goes out, too."""
        prompts = self._held_since_s is not None and time.monotonic() - self._held_since_s >= PROMPT_S
        if wait_s > 0 or prompts:
            self._log.write(self._splitter.flush())
            self._held_since_s = None
        self._log.flush(wait_s)
