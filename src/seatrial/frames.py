"""Encode the traffic between the command line and the agent: frames of the log, and the user's input.

Frames are evidence, reports and both output streams in one log stream of lines, the one that an engine keeps.

A line of stdout is itself. Any other begins with one of five control characters, the marks:

    RS (0x1e)   evidence: an event of the agent's
    STX (0x02)  a report of the target's: its number among the agent's lines, a space, the line
    US (0x1f)   a line of stderr
    FS (0x1c)   a piece of a line of stdout
    GS (0x1d)   in front of these: to be continued, the line end is not the stream's

Only the agent writes to this stream. A mark that the target prints is escaped wherever it stands: DLE (0x10) and the
mark with its bit 0x40 turned, DLE itself likewise. So no byte of the stream is a mark but the agent's own, also where a
reader begins in the middle of a line (``podman logs --follow`` of 4.3.1 cuts and joins lines under load).

Pieces are short: Docker cuts lines of its logs at 16 KiB, and kubelets before 1.24 put a time stamp before every part.

The user's input, typed or piped, comes through a named pipe. A message is its kind (one byte), the length of its data
(four, big-endian) and the data: input as it is, or the size of the caller's window in two numbers, lines and columns.
The input ends when the pipe has no writer left.

Standard library only, Python >= 3.8: the agent carries this file into containers.
"""

import re
import struct
from typing import Dict, List, NamedTuple, Optional, Tuple

EVIDENCE, REPORT, STDERR, STDOUT, CONTINUED = b"\x1e", b"\x02", b"\x1f", b"\x1c", b"\x1d"
_MARKS = re.compile(b"[\x02\x10\x1c-\x1f]")
_ESCAPED = re.compile(b"\x10([BP\\\\-_])")
#: Bytes of a piece, which doubles if all of them are escaped. Source: moby daemon/logger/copier.go, defaultBufSize =
#: 16 * 1024.
PIECE_BYTES = 8 * 1024 - 8


def encode(kind: bytes, data: bytes, whole: bool = True) -> bytes:
    """Encode a line of a stream, without its line end, as lines of the log.

    Args:
        kind: EVIDENCE, REPORT, STDERR or STDOUT.
        whole: the stream's line ends here; else the next call goes on with it.
    """
    pieces = [_escape(data[at : at + PIECE_BYTES]) for at in range(0, len(data), PIECE_BYTES)] or [b""]
    lines = [CONTINUED + kind + piece + b"\n" for piece in pieces[:-1]]
    mark = CONTINUED + kind if not whole else b"" if kind == STDOUT else kind
    return b"".join([*lines, mark + pieces[-1] + b"\n"])


class FrameDecoder:
    """Decodes lines of a log into streams."""

    def __init__(self) -> None:
        self._unfinished: Dict[bytes, List[bytes]] = {EVIDENCE: [], REPORT: []}

    @property
    def waiting(self) -> bool:
        """Return whether a line of evidence, or a report, has come in part."""
        return any(self._unfinished.values())

    def feed(self, line: bytes) -> Tuple[bytes, bytes]:
        """Return (kind, bytes of that stream) of a line of the log, its line end included.

        Output comes unchanged, with its line end if it has one. Evidence and reports come as whole lines; an
        unfinished one is ``b""``.
        """
        line = line[:-1] if line.endswith(b"\n") else line
        continued = line[:1] == CONTINUED
        line = line[1:] if continued else line
        kind = line[:1]
        if kind not in (EVIDENCE, REPORT, STDERR, STDOUT):
            return STDOUT, _plain(line) + b"\n"
        end = b"" if continued else b"\n"
        if kind in (STDERR, STDOUT):
            return kind, _plain(line[1:]) + end
        self._unfinished[kind].append(_plain(line[1:]))
        if continued:
            return kind, b""
        whole, self._unfinished[kind] = b"".join(self._unfinished[kind]), []
        return kind, whole + b"\n"


def _escape(data: bytes) -> bytes:
    return _MARKS.sub(lambda mark: b"\x10" + bytes([mark.group()[0] ^ 0x40]), data)


def _plain(data: bytes) -> bytes:
    return _ESCAPED.sub(lambda mark: bytes([mark.group()[1] ^ 0x40]), data)


class LineSplitter:
    """Cuts chunks of a stream into lines; the last, unfinished one is held until ``flush``."""

    def __init__(self, kind: bytes) -> None:
        self.kind = kind
        self._held = b""

    @property
    def holds(self) -> bool:
        """Return whether a line has begun that is neither finished nor sent."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Return frames of the lines that are complete now, and of a part of a held line that grows too long."""
        *lines, self._held = (self._held + data).split(b"\n")
        framed = b"".join(encode(self.kind, line) for line in lines)
        if len(self._held) > PIECE_BYTES:
            framed += self.flush()
        return framed

    def flush(self) -> bytes:
        """Return a frame of the held part of a line and hold nothing more; b"" without one."""
        held, self._held = self._held, b""
        return encode(self.kind, held, whole=False) if held else b""


#: The named pipe, in the record of a run that gets input.
PIPE = "input"

_INPUT, _SIZE = b"i", b"s"
_HEAD = struct.Struct(">cI")
_LINES_COLUMNS = struct.Struct(">HH")
#: Most data of one message; no sender of ours exceeds it.
MOST_BYTES = 64 * 1024
#: A window has no more lines or columns than the kernel counts (struct winsize, tty_ioctl(4)).
_LARGEST = 2**16 - 1


class Message(NamedTuple):
    """Input, or the window's (lines, columns)."""

    data: bytes = b""
    size: Optional[Tuple[int, int]] = None


class NotOursError(ValueError):
    """These bytes are not messages: somebody else writes into the pipe."""


def encode_input(data: bytes) -> bytes:
    """Encode input, at most MOST_BYTES of it, as a message."""
    return _HEAD.pack(_INPUT, len(data)) + data


def encode_size(lines: int, columns: int) -> bytes:
    """Encode the size of a window as a message."""
    return _HEAD.pack(_SIZE, _LINES_COLUMNS.size) + _LINES_COLUMNS.pack(min(lines, _LARGEST), min(columns, _LARGEST))


class InputDecoder:
    """Decodes bytes into messages, however they are cut."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> List[Message]:
        """Return the messages that are complete now. Raises NotOursError."""
        held, messages = self._held + data, []
        while len(held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(held)
            if kind not in (_INPUT, _SIZE) or length > MOST_BYTES or (kind == _SIZE and length != _LINES_COLUMNS.size):
                raise NotOursError("%r of %d bytes" % (kind, length))
            end = _HEAD.size + length
            if len(held) < end:
                break
            body, held = held[_HEAD.size : end], held[end:]
            messages.append(Message(data=body) if kind == _INPUT else Message(size=_LINES_COLUMNS.unpack(body)))
        self._held = held
        return messages
