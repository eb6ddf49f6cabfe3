"""Whole lines of a file as it grows: evidence of a live run, an index of its output, a target's reports."""

import errno
import os
import stat
import sys
from typing import Callable, Iterator, Optional

#: The longest line; a longer one is passed over. A sample of 8 GPUs has 5 KB.
MAX_LINE_BYTES = 1 << 20


class Lines:
    """The lines of a file, each once, whenever ``new`` is called.

    Nothing about the file is taken for granted, since a target can write there: no link is followed, nothing but a
    regular file is opened, one that was replaced or cut is read from its beginning, and a line may be of any length.

    Args:
        trouble: gets the reason why a file that is there is not read, each time.

    Attributes:
        offset: of the first byte that has not been read.
        too_long: lines passed over so far.
    """

    def __init__(self, path: str, trouble: Callable[[OSError], None] = lambda error: None) -> None:
        self.path = path
        self.offset = self.too_long = 0
        self._trouble = trouble
        self._inode = 0
        self._skipping = False

    def skip_to_last(self, size: int) -> None:
        """Go on from the last ``size`` bytes of what is there now; the line that begins before them is passed over."""
        descriptor = self._open()
        if descriptor is not None:
            self.offset = max(0, os.fstat(descriptor).st_size - size)
            self._skipping = size > 0 and self.offset > 0
            os.close(descriptor)

    def new(self, most_bytes: int = sys.maxsize) -> Iterator[bytes]:
        """Lines that are complete by now, without their ends; about ``most_bytes`` at most. Raises OSError."""
        descriptor = self._open() if self._has_grown() else None
        if descriptor is None:
            return
        try:
            while most_bytes > 0:
                data = os.pread(descriptor, MAX_LINE_BYTES, self.offset)
                end = data.rfind(b"\n") + 1
                if end:
                    yield from self._split(data[: end - 1])
                elif len(data) == MAX_LINE_BYTES:  # a line without end
                    self.too_long += not self._skipping
                    self._skipping = True
                    self.offset += len(data)
                else:
                    return
                most_bytes -= len(data)
        finally:
            os.close(descriptor)

    def _split(self, data: bytes) -> Iterator[bytes]:
        for line in data.split(b"\n"):
            self.offset += len(line) + 1
            if not self._skipping:
                yield line
            self._skipping = False

    def rest(self) -> bytes:
        """The last line, unfinished. Nothing when there is none, or it is too long. Raises OSError."""
        descriptor = None if self._skipping else self._open()
        if descriptor is None:
            return b""
        try:
            data = os.pread(descriptor, MAX_LINE_BYTES, self.offset)
        finally:
            os.close(descriptor)
        return b"" if b"\n" in data or len(data) == MAX_LINE_BYTES else data

    def _has_grown(self) -> bool:
        """Asked several times a second, and mostly not."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return status.st_ino != self._inode or status.st_size != self.offset

    def _open(self) -> Optional[int]:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):  # seen gone: what comes next is another file
                self.offset = 0
            if error.errno != errno.ENOENT:
                self._trouble(error)
            return None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            self._trouble(OSError(errno.EINVAL, "it is not a regular file", self.path))
            return None
        if status.st_ino != self._inode or status.st_size < self.offset:
            if self._inode:  # another file, or one that was cut: read from its beginning
                self.offset, self._skipping = 0, False
            self._inode = status.st_ino
        return descriptor
