"""Encode and decode what fronts and the model send each other over a socketpair, in frames.

A frame is its length (4 bytes), its kind (1 byte) and a payload. A front puts all rows of one turn of its loop into one
frame, the model all answers of one batch, so that system calls are shared. Both ends are ours and on one machine.
Shapes: n rows, each a tuple of arrays; rows of one frame have the same dtypes and numbers of dimensions.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from seatrial.serve.served_model import Row

#: From a front: rows with their numbers, and numbers whose clients have left. Its end is the end of the stream.
ROWS, ABANDONED = 1, 2
#: From the model: the options, its reader, that warm-up has passed, answers, why rows have none, and that the model
#: is lost.
OPTIONS, HELLO, READY, ANSWERS, FAILED, LOST = 10, 11, 12, 13, 14, 15

_HEAD = struct.Struct("<IB")
_COUNT = struct.Struct("<IB")
_ALIGNED = 16


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Return one frame as bytes."""
    return _HEAD.pack(len(payload), kind) + payload


def pickled(kind: int, value: Any) -> bytes:
    """Return a frame of any value; only our own processes read it."""
    return frame(kind, pickle.dumps(value))


class Frames:
    """Split the bytes of a stream into frames, however they are cut."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (kind, payload) of each frame that is now whole."""
        held = self._held
        held += data
        frames, at = [], 0
        while len(held) - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(held, at)
            end = at + _HEAD.size + size
            if len(held) < end:
                break
            frames.append((kind, bytes(memoryview(held)[at + _HEAD.size : end])))
            at = end
        if at:
            del held[:at]
        return frames


def encode_rows(kind: int, numbers: Sequence[int], rows: Sequence[Row]) -> bytes:
    """Return rows as frames: one for all that have the same dtypes and dimensions."""
    first = _signature(rows[0])
    if all(_signature(row) == first for row in rows):
        return _encode_alike(kind, numbers, rows)
    groups: dict[Any, tuple[list[int], list[Row]]] = {}
    for number, row in zip(numbers, rows, strict=True):
        group = groups.setdefault(_signature(row), ([], []))
        group[0].append(number)
        group[1].append(row)
    return b"".join(_encode_alike(kind, *group) for group in groups.values())


def decode_rows(payload: bytes) -> tuple[list[int], list[Row]]:
    """Return the numbers and rows of one frame; the arrays are read-only views of the payload."""
    count, tensors = _COUNT.unpack_from(payload)
    at = _COUNT.size
    numbers = np.frombuffer(payload, "<u8", count, at).tolist()
    at += 8 * count
    columns: list[list[np.ndarray]] = []
    for _ in range(tensors):
        length, dimensions = payload[at], payload[at + 1]
        dtype = np.dtype(payload[at + 2 : at + 2 + length].decode())
        at += 2 + length
        shapes = np.frombuffer(payload, "<u4", count * dimensions, at).reshape(count, dimensions)
        at += shapes.nbytes
        at += -at % _ALIGNED
        column, at = _column(payload, at, dtype, shapes)
        columns.append(column)
    return numbers, list(zip(*columns, strict=True)) if columns else [()] * count


def encode_numbers(kind: int, numbers: Iterable[int]) -> bytes:
    """Return a frame of row numbers alone."""
    return frame(kind, np.fromiter(numbers, "<u8").tobytes())


def decode_numbers(payload: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(payload, "<u8").tolist()
    return numbers


def _signature(row: Row) -> tuple[Any, ...]:
    return tuple((array.dtype, array.ndim) for array in row)


def _encode_alike(kind: int, numbers: Sequence[int], rows: Sequence[Row]) -> bytes:
    count = len(rows)
    parts = [_COUNT.pack(count, len(rows[0])), np.array(numbers, "<u8").tobytes()]
    size = _COUNT.size + 8 * count
    for column in zip(*rows, strict=True):
        dtype = column[0].dtype.str.encode()
        shapes = np.array([array.shape for array in column], "<u4").tobytes()
        head = bytes((len(dtype), column[0].ndim)) + dtype + shapes
        size += len(head)
        head += bytes(-size % _ALIGNED)
        size += -size % _ALIGNED
        data = b"".join([array.tobytes() for array in column])
        size += len(data)
        parts += (head, data)
    return frame(kind, b"".join(parts))


def _column(payload: bytes, at: int, dtype: np.dtype[Any], shapes: np.ndarray) -> tuple[list[np.ndarray], int]:
    """Return the arrays of one input, and where the next begins."""
    count = len(shapes)
    if (shapes == shapes[0]).all():
        shape = tuple(shapes[0].tolist())
        size = math.prod(shape)
        array = np.frombuffer(payload, dtype, count * size, at).reshape(count, *shape)
        return list(array) if shape else [array[n : n + 1].reshape(()) for n in range(count)], at + array.nbytes
    column = []
    for shape in shapes.tolist():
        size = math.prod(shape)
        column.append(np.frombuffer(payload, dtype, size, at).reshape(shape))
        at += size * dtype.itemsize
    return column, at
