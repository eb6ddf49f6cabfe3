"""Events written down: as lines of events.jsonl, chained or not."""

import errno
import fcntl
import json
import os
import stat
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from seatrial.events.schema import Event, Step

__all__ = [
    "CHAIN_START", "EVENTS_VARIABLE", "Chain", "EvidenceLog", "StepLog", "as_dict", "encode", "follow_chain", "link",
    "now", "split_chain",
]  # fmt: skip

#: Digest of an empty log, in hex, which is also the length kept of each line's SHA-256.
CHAIN_START = "0" * 32
_CHAIN_DIGITS = 32
#: Longest line that a chain is followed over. A pod's summary repeats what matters in less than a megabyte.
_MAX_CHAINED_BYTES = 16 << 20


def link(before: str, line: bytes) -> str:
    """Return the chain after a line without its own ``_chain``, as encode writes it."""
    import hashlib  # 4 MB of libcrypto that an agent in a container, which chains nothing, need not carry

    return hashlib.sha256(before.encode() + line).hexdigest()[:_CHAIN_DIGITS]


def split_chain(line: bytes) -> Tuple[bytes, Optional[str]]:
    """Return a line without its ``_chain``, and that; (line, None) if it has none."""
    body, mark, rest = line.rpartition(b',"_chain":"')
    if not mark or len(rest) != _CHAIN_DIGITS + 2 or not rest.endswith(b'"}'):
        return line, None
    return body + b"}", rest[:-2].decode("ascii", "replace")


class Chain(NamedTuple):
    """A followed chain: how many lines hold, their digest, and the first line that does not, from 1, or None."""

    lines: int
    digest: str
    broken_at: Optional[int]


def follow_chain(path: str) -> Chain:
    """Follow the chain of an events.jsonl. Raises OSError."""
    lines, digest = 0, CHAIN_START
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        for line in iter(lambda: file.readline(_MAX_CHAINED_BYTES), b""):
            body, stored = split_chain(line[:-1] if line.endswith(b"\n") else line)
            if stored is None or stored != link(digest, body):
                return Chain(lines, digest, lines + 1)
            lines, digest = lines + 1, stored
    return Chain(lines, digest, None)


#: Environment variable that names the file target scripts may append JSON lines to.
EVENTS_VARIABLE = "SEATRIAL_EVENTS"


def now() -> float:
    """Return the time of an event that happens now."""
    return round(time.time(), 4)


def as_dict(event: Event, source: str, t: Optional[float]) -> Dict[str, Any]:
    """Return an event as it stands in a line. ``source``: ``agent``, ``host`` or ``target``."""
    keys = {"t": t, "type": event.__class__.type, "source": source}
    keys.update(vars(event))
    return keys


def encode(event: Dict[str, Any]) -> bytes:
    """Return one line of events.jsonl. NaN and infinities become null: JSON has none."""
    try:
        text = json.dumps(event, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(event), separators=(",", ":"))
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class StepLog:
    """A target's own numbers, appended to a file. One write(2) a line on an O_APPEND descriptor: writers do not mix."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one step. Raises OSError when the disk is full; the line is then not there."""
        self.report(Step(**values))

    def report(self, event: Event) -> None:
        """Append one event of a kind that targets may report. Raises OSError, as ``write``."""
        line = encode(as_dict(event, "target", now()))
        written = os.write(self._fd, line)
        if written != len(line):  # a torn line ends here, so that the next one is readable
            os.write(self._fd, b"\n")
            raise OSError(28, "No space left on device", self.path)

    def close(self) -> None:
        os.close(self._fd)


class EvidenceLog:
    """Appends to a run's events.jsonl, each line chained to those before it. Several processes may write at once.

    A line's ``_chain`` is the digest of the line without it and of the chain before: changing, adding or removing a
    line has to change every later one. The last one stands in the receipt.
    """

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size, self._last = 0, CHAIN_START

    def write(self, event: Event) -> None:
        """Append one event. Raises OSError when the disk is full; the line is then not there."""
        self.append([as_dict(event, self.source, now())])

    def append(self, events: List[Dict[str, Any]]) -> None:
        """Append events as they are, all or none. Raises OSError."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            self._catch_up()
            lines, last = [], self._last
            for event in events:
                line = encode({key: value for key, value in event.items() if key != "_chain"})[:-1]
                last = link(last, line)
                lines.append(line[:-1] + b',"_chain":"%s"}\n' % last.encode())
            data = b"".join(lines)
            if os.write(self._fd, data) != len(data):
                os.ftruncate(self._fd, self._size)
                raise OSError(28, "No space left on device", self.path)
            self._size, self._last = self._size + len(data), last
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """Learn what others have appended meanwhile; what a writer that was killed left unfinished is cut off."""
        if (size := os.fstat(self._fd).st_size) == self._size:
            return
        span = 64 * 1024
        while True:
            begin = max(0, size - span)
            tail = os.pread(self._fd, size - begin, begin)
            whole = tail.rfind(b"\n") + 1
            start = tail.rfind(b"\n", 0, max(0, whole - 1)) + 1
            if begin == 0 or start > 0:
                break
            if span > _MAX_CHAINED_BYTES:
                raise OSError(errno.EINVAL, "its last line has no end", self.path)
            span *= 4
        if whole < len(tail):
            os.ftruncate(self._fd, begin + whole)
        self._size = begin + whole
        self._last = (split_chain(tail[start : whole - 1])[1] or CHAIN_START) if whole else CHAIN_START

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> "EvidenceLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
