"""Our own stdout or stderr, which an engine reads: never blocks for long, never dies when nobody reads."""

import os
import select

#: A pipe that polls as writable takes this many bytes without blocking. Source: pipe(7), PIPE_BUF.
_SAFE_WRITE_BYTES = 4096

#: Bytes kept for a reader that is slower than the target, before the target is made to wait.
_BACKLOG_BYTES = 256 * 1024

#: A reader that takes nothing for this long does not hold the target up any more; the log files stay complete.
STALL_S = 5.0


class PassThrough:
    """Our own stdout or stderr. Never dies when nobody reads, and waits at most STALL_S for someone who stalls."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._pending = bytearray()
        self._closed = False
        self.dropped_bytes = 0

    @property
    def waiting(self) -> bool:
        """Whether bytes are left that the reader has not taken yet."""
        return bool(self._pending)

    def write(self, data: bytes) -> None:
        """Pass on what the reader takes now; wait for it only when too much has piled up."""
        if self._closed:
            return
        self._pending += data
        self.flush(0)
        while len(self._pending) > _BACKLOG_BYTES:
            before = len(self._pending)
            self.flush(0 if self.dropped_bytes else STALL_S)
            if len(self._pending) == before:  # stalled: from now on it only gets what it takes at once
                self.dropped_bytes += before
                self._pending.clear()

    def flush(self, wait_s: float) -> None:
        """Write until all is out or the reader has taken nothing for ``wait_s``."""
        while self._pending and not self._closed:
            if not self._poll.poll(wait_s * 1000):
                return
            try:
                written = os.write(self._descriptor, self._pending[:_SAFE_WRITE_BYTES])
                del self._pending[:written]
            except BlockingIOError:
                return
            except OSError:  # EPIPE, EIO, ENOSPC: nobody will read this
                self._closed = True
                self._pending.clear()
