"""Messages with a person's input, typed or piped, from the command line to the agent through a named pipe.

A message is its kind (one byte), the length of its data (four, big-endian) and the data: input as it is, or the size of
the caller's window in two numbers, lines and columns. The input ends when the pipe has no writer any more.

Standard library only, Python >= 3.8: the agent carries this file into containers.
"""

import struct
from typing import List, NamedTuple, Optional, Tuple

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
