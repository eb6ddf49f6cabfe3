"""Read events back, of other versions and of targets: only ``type`` and ``t`` have values of a known type."""

import errno
import json
import os
import stat
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Type

from seatrial.events.schema import EVIDENCE_TYPES, REPORT_TYPES, Event, Step

__all__ = ["MAX_DEPTH", "MAX_REPORT_BYTES", "Lines", "find", "mark", "of_type", "parse", "read", "report", "tail"]
#: The longest line; a longer one is passed over. A sample of 8 GPUs has 5 KB.
MAX_LINE_BYTES = 1 << 20
#: Largest evidence that is read: nine days of eight GPUs. All of it is in memory while a run is judged.
MAX_READ_BYTES = 4 << 30


class Lines:
    """The lines of a file, each once, whenever ``new`` is called.

    Nothing about the file is taken for granted, since a target can write there: no link is followed, nothing but a
    regular file is opened, one that was replaced or cut is read from its beginning, and a line may be of any length.

    ``trouble``: gets the reason why a file that is there is not read, each time. ``skips``: go on behind a line that is
    too long; else the lines end there. ``offset``: of the first byte that has not been read. ``too_long``: lines passed
    over so far.
    """

    def __init__(
        self, path: str, trouble: Callable[[OSError], None] = lambda error: None, *, skips: bool = True
    ) -> None:
        self.path, self._skips = path, skips
        self.offset = self.too_long = 0
        self._trouble = trouble
        self._inode = 0
        self._skipping = False

    def skip_to_last(self, size: int) -> None:
        """Continue from the last ``size`` bytes of the file as it is now; leave out the line that begins before."""
        if (descriptor := self._open()) is not None:
            self.offset = max(0, os.fstat(descriptor).st_size - size)
            self._skipping = size > 0 and self.offset > 0
            os.close(descriptor)

    def new(self, most_bytes: int = sys.maxsize) -> Iterator[bytes]:
        """Yield lines that are complete by now, without their ends; about ``most_bytes`` at most. Raises OSError."""
        descriptor = self._open() if self._has_grown() else None
        if descriptor is None:
            return
        try:
            while most_bytes > 0:
                data = os.pread(descriptor, MAX_LINE_BYTES, self.offset)
                if end := data.rfind(b"\n") + 1:
                    yield from self._split(data[: end - 1])
                elif len(data) == MAX_LINE_BYTES and self._skips:  # a line without end
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
        """Return the last line, unfinished; nothing if there is none, or it is too long. Raises OSError."""
        descriptor = None if self._skipping else self._open()
        if descriptor is None:
            return b""
        try:
            data = os.pread(descriptor, MAX_LINE_BYTES, self.offset)
        finally:
            os.close(descriptor)
        return b"" if b"\n" in data or len(data) == MAX_LINE_BYTES else data

    def _has_grown(self) -> bool:
        """Return True if the file has grown. Called several times a second, and mostly it has not."""
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


#: A longer line of a report is not a step; a script that reports a thousand numbers a line needs 30 KB.
MAX_REPORT_BYTES = 64 * 1024
#: A line nested deeper is not an event: a program that reads or rewrites it would run out of stack. Ours are 4 deep.
MAX_DEPTH = 64


def report(line: bytes) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """Return the report on a target's line or None, and the type of evidence that it posed as or None.

    A type that no target may report becomes a step. Source, _seq and _chain are ours.
    (None, None) is not a report.
    """
    if len(line) > MAX_REPORT_BYTES or (event := parse(line)) is None:
        return None, None
    claimed = event["type"] if event["type"] in EVIDENCE_TYPES else None
    if claimed is not None or event.get("source") in ("agent", "host"):
        return None, claimed or "step"
    for ours in ("_seq", "_chain", "node"):
        event.pop(ours, None)
    event.update(type=event["type"] if event["type"] in REPORT_TYPES else Step.type, source="target")
    return event, None


def read(path: str) -> Tuple[List[Dict[str, Any]], int]:
    """Return (events of the complete lines, how many were none); nothing for no file or a link. Raises OSError."""
    if os.path.lexists(path) and os.lstat(path).st_size > MAX_READ_BYTES:
        raise OSError(errno.EFBIG, "it has more than %d GB" % (MAX_READ_BYTES >> 30), path)
    return _parsed(Lines(path, _raise), MAX_READ_BYTES)


def tail(path: str, size: int) -> Tuple[List[Dict[str, Any]], int]:
    """Read the last ``size`` bytes. A line cut in two at the beginning is not counted."""
    lines = Lines(path)
    lines.skip_to_last(size)
    return _parsed(lines, 2 * size)  # what is appended meanwhile included, within reason


def _raise(error: OSError) -> None:
    if error.errno != errno.ELOOP:
        raise error


def _parsed(lines: Lines, most_bytes: int = sys.maxsize) -> Tuple[List[Dict[str, Any]], int]:
    events, none = [], 0
    for line in lines.new(most_bytes):
        if (event := parse(line)) is not None:
            events.append(event)
        elif line.strip():
            none += 1
    return events, none + lines.too_long


def parse(line: bytes) -> Optional[Dict[str, Any]]:
    """Parse the event on one line; None if it is not a JSON object. A line without a type is a target's step."""
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deeper(event, MAX_DEPTH):
        return None
    if not isinstance(event.get("type"), str):
        event["type"] = Step.type
    if not isinstance(event.get("t"), (int, float)) or isinstance(event.get("t"), bool):
        event["t"] = None
    event.setdefault("source", "target")
    return event


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def of_type(events: Iterable[Dict[str, Any]], kind: Type[Event]) -> Iterator[Dict[str, Any]]:
    """Return the events of one kind, in order."""
    return (event for event in events if event["type"] == kind.type)


def mark(kind: Type[Event]) -> bytes:
    """Return the bytes that every line of this kind contains: a search for a few lines need not parse them all."""
    return b'"type":"%s"' % kind.type.encode()


def find(path: str, kind: Type[Event]) -> Iterator[Dict[str, Any]]:
    """Return the events of one kind in a file, lazily. Raises OSError."""
    wanted = b'"%s"' % kind.type.encode()
    return of_type(filter(None, map(parse, (line for line in Lines(path, _raise).new() if wanted in line))), kind)
