"""Texts of different lengths into rows of one width. numpy only. Shapes: N texts, R rows, W places a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Planes of a packed batch: the token, its position in its text, and which text it is of (0 is padding).
TOKENS, POSITIONS, TEXTS = 0, 1, 2


def rows_of(lengths: Sequence[int], width: int) -> tuple[list[int], list[int], int]:
    """The row of each text and the place in it where the text begins, and how many rows there are.

    The longest first, each into the row with the least room that is enough. Rows are kept by their room; the bits of
    ``rooms`` say which rooms there are.
    """
    row_of, place_of, rows, rooms = [0] * len(lengths), [0] * len(lengths), 0, 0
    with_room: list[list[int]] = [[] for _ in range(width + 1)]
    for text in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[text]
        if enough := rooms >> length:
            room = length + (enough & -enough).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, row, rows = width, rows, rows + 1
        row_of[text], place_of[text] = row, width - room
        if left := room - length:
            with_room[left].append(row)
            rooms |= 1 << left
    return row_of, place_of, rows


def pack(
    texts: Sequence[np.ndarray],
    row_of: Sequence[int],
    place_of: Sequence[int],
    planes_3RW: np.ndarray,
    firsts: np.ndarray,
) -> None:
    """Write the texts' tokens, positions and numbers into ``planes_3RW``, where each begins into ``firsts``."""
    width = planes_3RW.shape[2]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    # A graph reads all of them: one left from a larger batch would point behind the rows of this one.
    firsts[len(texts) :] = 0
    firsts[: len(texts)] = begin = np.asarray(row_of) * width + np.asarray(place_of)
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(begin, lengths) + positions
    flat = planes_3RW.reshape(3, -1)
    flat[:] = 0
    flat[TOKENS, places] = np.concatenate(texts)
    flat[POSITIONS, places] = positions
    flat[TEXTS, places] = np.repeat(np.arange(1, len(texts) + 1), lengths)
