"""A front's end of the socketpair: rows out, answers back, and what is known of the model."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from seatrial.serve import wire
from seatrial.serve.counts import Counts
from seatrial.serve.served_model import Answer, Reader, Row

#: How often it is looked whose time is over, in seconds.
_SWEEP_S = 0.05


@dataclass(frozen=True)
class Refusal:
    """Why there is no answer: a status and one sentence. ``retry_after_s``: when it is worth trying again."""

    status: int
    sentence: str
    retry_after_s: int | None = None


class Asked:
    """One request's rows at the model.

    Attributes:
        answer: is done with the answers in the order of the rows, or with a refusal.
    """

    __slots__ = ("answer", "answers", "deadline_s", "first", "left")

    def __init__(
        self, answer: asyncio.Future[list[Answer] | Refusal], first: int, rows: int, deadline_s: float
    ) -> None:
        self.answer, self.first, self.left, self.deadline_s = answer, first, rows, deadline_s
        self.answers: list[Answer | None] = [None] * rows


class ModelLink(asyncio.Protocol):
    """asyncio's protocol on the socketpair.

    Args:
        on_change: the phase has changed: ``loading`` → ``ready`` → ``draining`` or ``lost``.
    """

    def __init__(self, counts: Counts, queue: int, timeout_s: float, on_change: Callable[[], None]) -> None:
        self._counts, self._queue, self._timeout_s, self._on_change = counts, queue, timeout_s, on_change
        self.phase = "loading"
        self.reader: Reader | None = None
        self.max_batch = 1
        self._loop = asyncio.get_running_loop()
        self._frames = wire.Frames()
        self._next = 0
        self._asked: dict[int, Asked] = {}
        self._numbers: list[int] = []
        self._rows: list[Row] = []
        self._left: list[int] = []
        self._transport: asyncio.WriteTransport | None = None
        self._loop.call_later(_SWEEP_S, self._sweep)

    def ask(self, rows: Sequence[Row]) -> Asked | Refusal:
        """Send rows to the model with this turn of the loop."""
        if self.phase not in ("ready", "draining"):
            return self.unready()
        if not self._counts.enter(len(rows), self._queue):
            return Refusal(429, "Too many requests wait already: try again in a second.", 1)
        first, self._next = self._next, self._next + len(rows)
        asked = Asked(self._loop.create_future(), first, len(rows), self._loop.time() + self._timeout_s)
        if not self._numbers:
            self._loop.call_soon(self._flush)
        for number in range(first, self._next):
            self._asked[number] = asked
            self._numbers.append(number)
        self._rows.extend(rows)
        return asked

    def abandon(self, asked: Asked) -> None:
        """Nobody waits for it any more."""
        self._give_up(asked, Refusal(499, "The client has left."))

    def unready(self) -> Refusal:
        """Why there are no answers now."""
        if self.phase == "loading":
            return Refusal(503, "The model is still being loaded: try again in a few seconds.", 2)
        return Refusal(503, "The model no longer answers, and the server ends.", 10)

    def refuse_all(self, refusal: Refusal) -> None:
        """Nothing is waited for any more."""
        for asked in list(self._asked.values()):
            self._give_up(asked, refusal)

    @property
    def idle(self) -> bool:
        """Nothing is asked that has no answer."""
        return not self._asked

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        for kind, payload in self._frames.feed(data):
            if kind == wire.ANSWERS:
                self._answered(*wire.decode_rows(payload))
            elif kind == wire.FAILED:
                numbers, status, sentence = pickle.loads(payload)
                self._failed(numbers, Refusal(status, sentence))
            elif kind == wire.HELLO:
                self.reader, self.max_batch = pickle.loads(payload)
            elif kind == wire.READY:
                self._enter("ready")
            elif kind == wire.LOST:
                self._lose()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    def close(self) -> None:
        """Everything has been answered: the end."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def enter_drain(self) -> None:
        """Readiness goes; rows are still sent to the model."""
        self._enter("draining")

    def _answered(self, numbers: list[int], answers: list[Answer]) -> None:
        done = 0
        for number, answer in zip(numbers, answers, strict=True):
            asked = self._asked.pop(number, None)
            if asked is None:  # it was given up meanwhile, and counted then
                continue
            done += 1
            asked.answers[number - asked.first] = answer
            asked.left -= 1
            if not asked.left and not asked.answer.done():
                asked.answer.set_result(asked.answers)  # type: ignore[arg-type]
        self._counts.leave(done)

    def _failed(self, numbers: list[int], refusal: Refusal) -> None:
        for number in numbers:
            if (asked := self._asked.get(number)) is not None:
                self._give_up(asked, refusal)

    def _give_up(self, asked: Asked, refusal: Refusal) -> None:
        numbers = range(asked.first, asked.first + len(asked.answers))
        left = [number for number in numbers if self._asked.pop(number, None) is not None]
        self._counts.leave(len(left))
        if left and self.phase != "lost":
            if not self._left:
                self._loop.call_soon(self._flush)
            self._left += left
        if not asked.answer.done():
            asked.answer.set_result(refusal)

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._numbers:
            data = wire.encode_rows(wire.ROWS, self._numbers, self._rows)
            self._numbers, self._rows = [], []
            self._transport.write(data)
        if self._left:
            data = wire.encode_numbers(wire.ABANDONED, self._left)
            self._left = []
            self._transport.write(data)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        while self._asked:
            asked = next(iter(self._asked.values()))  # the oldest: all have the same time
            if asked.deadline_s > now_s:
                break
            self._give_up(asked, Refusal(504, f"No answer within {self._timeout_s:g} s."))
        self._loop.call_later(_SWEEP_S, self._sweep)

    def _enter(self, phase: str) -> None:
        if self.phase != "lost" and not (phase == "ready" and self.phase == "draining"):
            self.phase = phase
            self._on_change()

    def _lose(self) -> None:
        if self.phase == "lost":
            return
        self.phase = "lost"
        self.refuse_all(self.unready())
        self._on_change()
