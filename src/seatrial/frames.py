"""Frames: evidence and both output streams in one log stream of lines, for places that keep nothing else of a pod.

A line of stdout is itself. Any other begins with one of four control characters, which terminals do not show:

    RS (0x1e)   evidence: a line of events.jsonl
    US (0x1f)   a line of stderr
    FS (0x1c)   a line of stdout that itself begins with one of the four
    GS (0x1d)   in front of these: to be continued, the line end is not the stream's

Pieces are short: Docker cuts lines of its logs at 16 KiB, and kubelets before 1.24 put a time stamp before every part.
Standard library only, Python >= 3.8: the agent carries this file into containers.
"""

from typing import List, Tuple

EVIDENCE, STDERR, STDOUT, CONTINUED = b"\x1e", b"\x1f", b"\x1c", b"\x1d"
_MARKS = (EVIDENCE, STDERR, STDOUT, CONTINUED)

#: Bytes of a piece. Source: moby daemon/logger/copier.go, defaultBufSize = 16 * 1024.
PIECE_BYTES = 8 * 1024


def encode(kind: bytes, data: bytes, whole: bool = True) -> bytes:
    """One line of a stream, without its line end, as lines of the log.

    Args:
        kind: EVIDENCE, STDERR or STDOUT.
        whole: the stream's line ends here; else the next call goes on with it.
    """
    pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)] or [b""]
    lines = [CONTINUED + kind + piece + b"\n" for piece in pieces[:-1]]
    last = pieces[-1]
    if not whole:
        lines.append(CONTINUED + kind + last + b"\n")
    elif kind == STDOUT and last[:1] not in _MARKS:
        lines.append(last + b"\n")
    else:
        lines.append(kind + last + b"\n")
    return b"".join(lines)


class Decoder:
    """Lines of a log back into streams."""

    def __init__(self) -> None:
        self._evidence: List[bytes] = []

    def feed(self, line: bytes) -> Tuple[bytes, bytes]:
        """(kind, bytes of that stream) of one line of the log, its line end included.

        Output comes as it is, with its line end where it has one. Evidence comes as whole lines; an unfinished one is
        ``b""``.
        """
        line = line[:-1] if line.endswith(b"\n") else line
        continued = line[:1] == CONTINUED
        line = line[1:] if continued else line
        kind = line[:1]
        if kind not in (EVIDENCE, STDERR, STDOUT):
            return STDOUT, line + b"\n"
        end = b"" if continued else b"\n"
        if kind != EVIDENCE:
            return kind, line[1:] + end
        self._evidence.append(line[1:])
        if continued:
            return EVIDENCE, b""
        whole, self._evidence = b"".join(self._evidence), []
        return EVIDENCE, whole + b"\n"


class LineSplitter:
    """Cuts chunks of a stream into lines; the last, unfinished one is held until ``flush``."""

    def __init__(self, kind: bytes) -> None:
        self.kind = kind
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Frames of the lines that are complete now; a held line that grows too long goes out in part."""
        *lines, self._held = (self._held + data).split(b"\n")
        framed = b"".join(encode(self.kind, line) for line in lines)
        if len(self._held) > PIECE_BYTES:
            framed += self.flush()
        return framed

    def flush(self) -> bytes:
        """A frame of what is held."""
        held, self._held = self._held, b""
        return encode(self.kind, held, whole=False) if held else b""
