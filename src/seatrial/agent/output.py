"""Read the target's streams and its reports, and note when it was last active."""

import errno
import os
import time
from contextlib import suppress
from typing import Optional

from seatrial.agent.journal import STALL_S, Journal, Redactor
from seatrial.events import Lines

CHUNK_BYTES = 64 * 1024

_NAMES = {1: "stdout.log", 2: "stderr.log"}
#: Read in one go, at most: a script that reports faster than this must not keep the agent from its samples.
_AT_ONCE_BYTES = 16 << 20
#: Most bytes read of the output that is left at the end.
_AT_END_BYTES = 256 << 20
#: Limits on what one target passes on, in lines and bytes. A million lines take a reader a minute, and a gigabyte takes
#: its memory. A script that writes "{}" for ever could keep a reader busy for days after its own end.
_MOST_LINES, _MOST_BYTES = 1_000_000, 1 << 30


class Activity:
    """Counts what happens; safe with threads that only look whether it has moved."""

    def __init__(self) -> None:
        self._count = self._seen = 0

    def happened(self) -> None:
        """Count a print or report of the target."""
        self._count += 1

    def new(self) -> bool:
        """Return whether anything has happened since the last call."""
        seen, self._seen = self._seen, self._count
        return self._count != seen


class Stream:
    """One of the target's streams.

    ``number``: 1 or 2, as in output.idx. ``source``: descriptor to read from. ``folder``: gets the log file and
    output.idx, or None. ``lines``: line ends that were passed on. ``within_line``: its last byte was not a line end.
    """

    def __init__(
        self, number: int, source: int, folder: Optional[str], redactor: Redactor, journal: Journal, activity: Activity
    ) -> None:
        self.source = source
        self.open = True
        self.engine = journal.output_channel(number)
        self._number = number
        self._log = None if folder is None else _open_log(folder, _NAMES[number])
        self._index = None if folder is None else _open_log(folder, "output.idx")
        self._redactor, self._journal, self._activity = redactor, journal, activity
        self.lines = self._lost_bytes = 0
        self.within_line = False

    def pump(self) -> bool:
        """Move one chunk; False when nothing is there now, or the stream has ended."""
        try:
            data = os.read(self.source, CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # a terminal that nobody has open any more
        if data:
            self._activity.happened()
            self.within_line = data[-1:] != b"\n"
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
        for descriptor in (self.source, self._log, self._index):
            if descriptor is not None:
                os.close(descriptor)
        if self._lost_bytes:
            self._journal.note("%d bytes of output are in no log file: the disk was full" % self._lost_bytes)
        if self.engine.dropped_bytes and (self._log is not None or self._number == 1):  # framed, both share one way
            kept = "; the log files are complete" if self._log is not None else ": output is missing from the logs"
            self._journal.note("the engine's log reader stalled" + kept)

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self.lines += data.count(b"\n")
        if self._log is not None and self._index is not None and (written := self._append(self._log, data)):
            with suppress(OSError):  # full disk: the log or the journal has reported it
                os.write(self._index, b"%.6f %d %d\n" % (time.time(), self._number, written))
        self.engine.write(data)

    def _append(self, log: int, data: bytes) -> int:
        """Append to the log file and return the bytes that reached it; on a full disk, those that fitted."""
        written = 0
        try:
            while written < len(data):
                written += os.write(log, data[written:])
        except OSError as error:
            if not self._lost_bytes:
                self._journal.note("output is being lost: %s" % error.strerror)
            self._lost_bytes += len(data) - written
        return written


def _open_log(folder: str, name: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(os.path.join(folder, name), flags, 0o600)


class TargetReports:
    """Call ``read`` now and then, and ``finish`` at the target's end; what an earlier agent has read is skipped."""

    def __init__(self, path: str, journal: Journal, activity: Activity) -> None:
        self._journal, self._activity = journal, activity
        self._complained = False
        self._count = self._bytes = 0
        self._lines = Lines(path, self._complain)
        self._lines.skip_to_last(0)

    def read(self, most_bytes: int = _AT_ONCE_BYTES) -> None:
        """Pass on the lines that are complete."""
        with suppress(OSError):  # the file system failed; what was read counts
            for line in self._lines.new(most_bytes):
                self._pass_on(line)

    def finish(self) -> None:
        """Pass on what is left, an unfinished last line included."""
        self.read(_AT_END_BYTES)
        with suppress(OSError):
            self._pass_on(self._lines.rest())

    def _pass_on(self, line: bytes) -> None:
        if not line.strip():
            return
        self._activity.happened()
        if self._count < _MOST_LINES and self._bytes + len(line) <= _MOST_BYTES:
            self._count += 1
            self._bytes += len(line)
            self._journal.report(line)
        elif self._bytes <= _MOST_BYTES:
            self._bytes = _MOST_BYTES + 1
            self._journal.note("lines in $SEATRIAL_EVENTS beyond the first %d are ignored" % self._count)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._journal.note("reports in $SEATRIAL_EVENTS are not read: %s" % error.strerror)
