"""The target's reports: what it appends to $SEATRIAL_EVENTS, read as it grows and passed on to the journal.

The file is the target's, so nothing about it is taken for granted: no link is followed, nothing but a regular file is
opened, and a line may be of any length.
"""

import errno
import os
import stat

from seatrial.agent.activity import Activity
from seatrial.agent.streams.journal import Journal
from seatrial.events import MAX_REPORT_BYTES

_CHUNK_BYTES = 1 << 20

#: Read in one go, at most: a script that reports faster than this must not keep the agent from its samples.
_AT_ONCE_BYTES = 16 << 20

#: At the end all is read, up to here.
_AT_END_BYTES = 256 << 20

#: Passed on of one target, in lines. A million takes its reader a minute; a script that writes "{}" for ever could keep
#: one busy for days after its own end.
_MOST_LINES = 1_000_000


class Reports:
    """Call ``read`` now and then, and ``finish`` when the target has ended.

    Args:
        path: of the file. What is in it when the agent starts has been passed on by an agent before, or is nobody's.
    """

    def __init__(self, path: str, journal: Journal, activity: Activity) -> None:
        self._path, self._journal, self._activity = path, journal, activity
        self._inode, self._offset = 0, 0
        self._skipping = False
        self._complained = False
        self._lines = 0
        descriptor = self._open()
        if descriptor is not None:
            self._offset = os.fstat(descriptor).st_size
            os.close(descriptor)

    def read(self, most_bytes: int = _AT_ONCE_BYTES) -> None:
        """Pass on the lines that are complete."""
        if not self._has_grown():
            return
        descriptor = self._open()
        if descriptor is None:
            return
        try:
            while most_bytes > 0:
                data = os.pread(descriptor, _CHUNK_BYTES, self._offset)
                if not self._take(data):
                    return
                most_bytes -= len(data)
        except OSError:  # the file system failed; what was read counts
            pass
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        """Pass on what is left, an unfinished last line included."""
        self.read(_AT_END_BYTES)
        descriptor = self._open()
        if descriptor is None:
            return
        try:
            rest = os.pread(descriptor, MAX_REPORT_BYTES, self._offset)
            if rest.strip() and b"\n" not in rest and not self._skipping:
                self._pass_on(rest)
        except OSError:
            pass
        finally:
            os.close(descriptor)

    def _has_grown(self) -> bool:
        """Asked several times a second, and mostly not."""
        try:
            status = os.lstat(self._path)
        except OSError:
            return False
        return status.st_ino != self._inode or status.st_size != self._offset

    def _take(self, data: bytes) -> bool:
        """Pass on the whole lines of a chunk; False when there is nothing more to read for now."""
        end = data.rfind(b"\n") + 1
        if end == 0:
            if len(data) < _CHUNK_BYTES:
                return False
            self._skipping, self._offset = True, self._offset + len(data)  # a line without end: not a report
            return True
        self._offset += end
        for line in data[: end - 1].split(b"\n"):
            if self._skipping:
                self._skipping = False
            elif line.strip():
                self._pass_on(line)
        return True

    def _pass_on(self, line: bytes) -> None:
        self._activity.happened()
        self._lines += 1
        if self._lines <= _MOST_LINES:
            self._journal.report(line)
        elif self._lines == _MOST_LINES + 1:
            self._journal.note("lines in $SEATRIAL_EVENTS beyond the first %d are ignored" % _MOST_LINES)

    def _open(self) -> "int | None":
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):  # seen gone: what comes next is another file
                self._offset = 0
            if not isinstance(error, FileNotFoundError):
                self._complain("it cannot be opened: %s" % error.strerror)
            return None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            self._complain("it is not a regular file")
            return None
        if status.st_ino != self._inode or status.st_size < self._offset:
            if self._inode:  # another file, or one that was cut: read from its beginning
                self._offset, self._skipping = 0, False
            self._inode = status.st_ino
        return descriptor

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            self._journal.note("reports in $SEATRIAL_EVENTS are not read: %s" % why)
