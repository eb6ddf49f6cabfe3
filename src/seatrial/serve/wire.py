"""Encode and decode what fronts and the model send each other over a socketpair, in frames.

A frame is its length (4 bytes), its kind (1 byte) and a payload. A front puts all rows of one turn of its loop into one
frame, the model all answers of one batch, so that system calls are shared. Both ends are ours and on one machine.
Shapes: n rows, each a tuple of arrays; rows of one frame have the same dtypes and numbers of dimensions.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from seatrial.serve.served_model import Row

#: Messages of a front: rows with their numbers, and numbers whose clients have left. Its end is the end of the stream.
ROWS, ABANDONED = 1, 2
#: Messages of the model: the options, its reader, the end of the warm-up, answers, the reason for rows without one, and
#: the loss of the model.
OPTIONS, HELLO, READY, ANSWERS, FAILED, LOST = 10, 11, 12, 13, 14, 15
#: Sent to a front's decoder and back: its reader, a request and its rows.
READER, REQUEST, DECODED = 20, 21, 22

HEAD = struct.Struct("<IB")


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Return one frame as bytes."""
    return HEAD.pack(len(payload), kind) + payload


def pickled(kind: int, value: Any) -> bytes:
    """Return a frame of any value; only our own processes read it."""
    return frame(kind, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def receive(sock: socket.socket) -> Any:
    """Wait for the next frame and return its value; None at the end of the stream."""
    head = sock.recv(HEAD.size, socket.MSG_WAITALL)
    if len(head) < HEAD.size:
        return None
    size, _ = HEAD.unpack(head)
    payload = sock.recv(size, socket.MSG_WAITALL)
    return pickle.loads(payload) if len(payload) == size else None


class Frames:
    """Split the bytes of a stream into frames, however they are cut."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (kind, payload) of each frame that is now whole."""
        held = self._held
        held += data
        frames, at = [], 0
        while len(held) - at >= HEAD.size:
            size, kind = HEAD.unpack_from(held, at)
            end = at + HEAD.size + size
            if len(held) < end:
                break
            frames.append((kind, bytes(memoryview(held)[at + HEAD.size : end])))
            at = end
        if at:
            del held[:at]
        return frames


def encode_rows(kind: int, numbers: Sequence[int], rows: Sequence[Row]) -> bytes:
    """Return rows as frames: one for all that have the same dtypes and dimensions."""
    groups: dict[Any, tuple[list[int], list[Row]]] = {}
    for number, row in zip(numbers, rows, strict=True):
        group = groups.setdefault(tuple((array.dtype, array.ndim) for array in row), ([], []))
        group[0].append(number)
        group[1].append(row)
    return b"".join(_encode_alike(kind, *group) for group in groups.values())


def decode_rows(payload: bytes) -> tuple[list[int], list[Row]]:
    """Return the numbers and rows of one frame; the arrays are read-only views."""
    numbers, columns = pickle.loads(payload)
    rows = list(zip(*(_arrays(*column) for column in columns), strict=True)) if columns else [()] * len(numbers)
    return numbers, rows


def _encode_alike(kind: int, numbers: Sequence[int], rows: Sequence[Row]) -> bytes:
    """Return a frame with, for each input, its type, the rows' bytes one behind the other, and their shapes."""
    columns = []
    for column in zip(*rows, strict=True):
        shapes = np.array([array.shape for array in column], np.int64)
        columns.append((column[0].dtype.str, b"".join([array.tobytes() for array in column]), shapes))
    return pickled(kind, (numbers, columns))


def _arrays(dtype: str, data: bytes, shapes: np.ndarray) -> list[np.ndarray]:
    """Split the array of one input into its rows' arrays."""
    flat = np.frombuffer(data, dtype)
    if shapes.shape[1] and (shapes == shapes[0]).all():
        return list(flat.reshape(len(shapes), *shapes[0]))
    sizes = shapes.prod(1)
    begins = (sizes.cumsum() - sizes).tolist()
    return [
        flat[begin : begin + size].reshape(shape)
        for begin, size, shape in zip(begins, sizes.tolist(), shapes.tolist(), strict=True)
    ]
