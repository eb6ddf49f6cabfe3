"""Lines of a log, without what terminals, loggers, launchers and notebooks put around them."""

import re
from typing import Optional, Tuple

#: What steers a terminal: colours, cursor, titles (ECMA-48: CSI and OSC sequences), and its escape as JSON writes it.
STEERS = re.compile(rb"(?:\x1b|\\u001b|\\x1b|\\033)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")

#: What stands before a line: a date and a time, ``[rank3]:``, ``[1,0]<stderr>:``, ``[pod/NAME/CONTAINER]``, a frame.
_BEFORE = re.compile(
    rb"\s*(?:[\[(]?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d[^\s\])]*[\])]?(?=\s)"
    rb"|\[rank\d+\]:|\[\d+,\d+\]<std(?:err|out)>:|\[pod/[^\s\]]+\]|\xe2\x94[\x82\x83]|\xe2\x9d\xb1)"
)
#: What stands behind a line: the other side of its frame.
_BEHIND = (b"\xe2\x94\x82", b"\xe2\x94\x83")

#: Windows' PowerShell writes what it redirects in UTF-16, behind one of these marks.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

#: Narrower than this nobody breaks lines: terminals have 80 columns, frames some less.
_MIN_WIDTH = 40

#: How much shorter than the longest line one may be that was broken between two words.
_RAGGED = 24

#: Bytes on each side of the place where a line was broken. Symptoms are below 150 characters.
_SEAM = 160


def without_steering(line: bytes) -> bytes:
    """A line as it is read on a terminal."""
    return STEERS.sub(b"", line) if b"\x1b" in line or b"1b[" in line or b"\\033[" in line else line


class Seams:
    """Where two lines meet that may have been one.

    A line that was broken is as long as any before it: where there are longer ones, nothing broke it.
    """

    def __init__(self) -> None:
        self._width = _MIN_WIDTH
        self._end = b""

    def before(self, line: bytes) -> Optional[Tuple[bytes, bytes]]:
        """The end of the line before and the beginning of this one; None where nothing broke them."""
        line = without_steering(line).rstrip(b"\r\n")
        end = self._end
        self._width = max(self._width, len(line))
        is_long = len(line) >= max(_MIN_WIDTH, self._width - _RAGGED)
        bare = _bare(line) if end or is_long else b""
        self._end = bare[-_SEAM:] if is_long else b""
        begin = bare[:_SEAM].lstrip()
        return (end, begin) if end and begin else None


def _bare(line: bytes) -> bytes:
    while before := _BEFORE.match(line):
        line = line[before.end() :]
    line = line.rstrip()
    while line.endswith(_BEHIND):
        line = line[:-3].rstrip()
    return line


def one_byte_letters(line: bytes, beginning: bytes) -> bytes:
    """A line of a log that begins like UTF-16, its ASCII readable; another as it is."""
    return line.replace(b"\x00", b"") if beginning.startswith(_UTF_16) else line
