"""The target's stdout and stderr: apart, complete and in order in the run folder, and passed on to the engine.

``output.idx`` has one line ``<unix time> <1|2> <byte count>`` for each chunk, so that readers can put both streams
together again exactly as they came.
"""

import os
import time

from seatrial.agent.journal import Journal
from seatrial.agent.pass_through import STALL_S
from seatrial.agent.redaction import Redactor

CHUNK_BYTES = 64 * 1024


class Stream:
    """One of the target's streams.

    Args:
        number: 1 or 2, as in output.idx.
        source: descriptor to read from.
        index: descriptor of output.idx, opened for appending.
    """

    def __init__(
        self, number: int, source: int, log_path: str, index: int, redactor: Redactor, journal: Journal
    ) -> None:
        self.source = source
        self.open = True
        self.engine = journal.way_out(number)
        self._number = number
        self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._index = index
        self._redactor = redactor
        self._journal = journal
        self._lost_bytes = 0

    def pump(self) -> bool:
        """Move one chunk; False when nothing is there now, or the stream has ended."""
        try:
            data = os.read(self.source, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._keep(self._redactor.feed(data))
            return True
        self.close()
        return False

    def close(self) -> None:
        """Write out what was held back, and close. Closing twice is fine."""
        if not self.open:
            return
        self.open = False
        self._keep(self._redactor.flush())
        self.engine.flush(STALL_S)
        os.close(self.source)
        os.close(self._log)
        if self._lost_bytes:
            self._journal.note("%d bytes of output are in no log file: the disk was full" % self._lost_bytes)
        if self.engine.dropped_bytes:
            self._journal.note("the engine's log reader stalled; the run folder's log files are complete")

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        written = self._append(data)
        if written:
            self._note_index(written)
        self.engine.write(data)

    def _append(self, data: bytes) -> int:
        """Bytes that reached the log file; on a full disk, what went in before."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._log, data[written:])
        except OSError as error:
            if not self._lost_bytes:
                self._journal.note("output is being lost: %s" % error.strerror)
            self._lost_bytes += len(data) - written
        return written

    def _note_index(self, count: int) -> None:
        try:
            os.write(self._index, b"%.6f %d %d\n" % (time.time(), self._number, count))
        except OSError:  # full disk: said already, by the log or by the journal
            pass


def open_index(path: str) -> int:
    """Descriptor of output.idx, for both streams."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
