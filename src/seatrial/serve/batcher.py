"""Batcher: rows of all fronts that wait, and which of them are computed next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from seatrial.serve.served_model import Row

#: A row as (front, its number there).
Key = tuple[int, int]


class Batcher:
    """First in, first out. Not for several threads.

    Args:
        most: rows of a batch. patience_s: the longest that a row waits for company; 0 waits for nobody.
    """

    def __init__(self, most: int, patience_s: float) -> None:
        self._most, self._patience_s = most, patience_s
        self._waiting: deque[tuple[Key, Row, float]] = deque()
        self._abandoned: set[Key] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, front: int, numbers: Iterable[int], rows: Iterable[Row], now_s: float) -> None:
        """Rows that have just come."""
        self._waiting.extend(((front, number), row, now_s) for number, row in zip(numbers, rows, strict=True))

    def abandon(self, front: int, numbers: Iterable[int]) -> None:
        """Nobody waits for these any more. What has been computed already is not here and is forgotten at once."""
        gone = {(front, number) for number in numbers}
        self._abandoned |= gone & {key for key, _, _ in self._waiting}

    def abandon_front(self, front: int) -> int:
        """The front is gone, and all that it asked for; how many rows that is."""
        before = len(self._waiting)
        self._waiting = deque(each for each in self._waiting if each[0][0] != front)
        self._abandoned = {key for key in self._abandoned if key[0] != front}
        return before - len(self._waiting)

    def patience_left_s(self, now_s: float, expected: int) -> float | None:
        """How long to wait before the next batch: 0 is now; None while nothing waits.

        Args:
            expected: rows that are here or on their way. With all of them here nobody else can come, and waiting for
                company would be waiting for nothing.
        """
        if not self._waiting:
            return None
        if len(self._waiting) >= self._most or len(self._waiting) >= expected:
            return 0.0
        return max(0.0, self._waiting[0][2] + self._patience_s - now_s)

    def take(self) -> tuple[list[Key], list[Row], int]:
        """The next batch, and how many abandoned rows were left out for it."""
        keys: list[Key] = []
        rows: list[Row] = []
        left_out = 0
        while self._waiting and len(rows) < self._most:
            key, row, _ = self._waiting.popleft()
            if key in self._abandoned:
                self._abandoned.discard(key)
                left_out += 1
                continue
            keys.append(key)
            rows.append(row)
        return keys, rows, left_out
