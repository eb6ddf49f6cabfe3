"""Send rows to the model over a front's end of the socketpair, receive answers, and follow the model's phase."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from seatrial.serve import wire
from seatrial.serve.counters import Counters
from seatrial.serve.served_model import Answer, Reader, Row

#: Seconds between two searches for requests whose time is over.
_SWEEP_S = 0.05


class Refusal(NamedTuple):
    """An error in place of an answer: a status and one sentence. ``retry_after_s``: when it is worth trying again."""

    status: int
    sentence: str
    retry_after_s: int | None = None


class PendingRequest:
    """One request's rows at the model. ``answer`` gets the answers in the order of the rows, or a refusal."""

    __slots__ = ("answer", "answers", "deadline_s", "first", "left")

    def __init__(
        self, answer: asyncio.Future[list[Answer] | Refusal], first: int, rows: int, deadline_s: float
    ) -> None:
        self.answer, self.first, self.left, self.deadline_s = answer, first, rows, deadline_s
        self.answers: list[Answer | None] = [None] * rows


class ModelLink(asyncio.Protocol):
    """asyncio's protocol; calls ``on_change`` after each phase: ``loading`` → ``ready`` → ``draining`` or ``lost``."""

    def __init__(self, counters: Counters, queue: int, timeout_s: float, on_change: Callable[[], None]) -> None:
        self._counters, self._queue, self._timeout_s, self._on_change = counters, queue, timeout_s, on_change
        self.phase = "loading"
        self.reader: Reader | None = None
        self.max_batch = 1
        self._loop = asyncio.get_running_loop()
        self._frames = wire.Frames()
        self._next = 0
        self._pending: dict[int, PendingRequest] = {}
        self._numbers: list[int] = []
        self._rows: list[Row] = []
        self._left: list[int] = []
        self._transport: asyncio.WriteTransport | None = None
        self._loop.call_later(_SWEEP_S, self._sweep)

    def send(self, rows: Sequence[Row]) -> PendingRequest | Refusal:
        """Send rows to the model with this turn of the loop."""
        if self.phase not in ("ready", "draining"):
            return self.unready()
        if not self._counters.enter(len(rows), self._queue):
            return Refusal(429, "Too many requests wait already: try again in a second.", 1)
        first, self._next = self._next, self._next + len(rows)
        pending = PendingRequest(self._loop.create_future(), first, len(rows), self._loop.time() + self._timeout_s)
        if not self._numbers:
            self._loop.call_soon(self._flush)
        for number in range(first, self._next):
            self._pending[number] = pending
            self._numbers.append(number)
        self._rows.extend(rows)
        return pending

    def abandon(self, pending: PendingRequest) -> None:
        """Drop a request whose client has left."""
        self._give_up(pending, Refusal(499, "The client has left."))

    def unready(self) -> Refusal:
        """Return the refusal while the model is not ready, or once it no longer is."""
        if self.phase == "loading":
            return Refusal(503, "The model is still being loaded: try again in a few seconds.", 2)
        return Refusal(503, "The model no longer answers, and the server ends.", 10)

    def refuse_all(self, refusal: Refusal) -> None:
        """End every request with this refusal."""
        for pending in list(self._pending.values()):
            self._give_up(pending, refusal)

    @property
    def idle(self) -> bool:
        """Return True if every request has its answer."""
        return not self._pending

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        for kind, payload in self._frames.feed(data):
            if kind == wire.ANSWERS:
                self._answered(*wire.decode_rows(payload))
            elif kind == wire.FAILED:
                numbers, status, sentence = pickle.loads(payload)
                for pending in filter(None, map(self._pending.get, numbers)):  # several rows may be of one request
                    self._give_up(pending, Refusal(status, sentence))
            elif kind == wire.HELLO:
                self.reader, self.max_batch = pickle.loads(payload)
            elif kind == wire.READY:
                self.enter("ready")
            elif kind == wire.LOST:
                self._lose()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    def close(self) -> None:
        """Send what is left and close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _answered(self, numbers: list[int], answers: list[Answer]) -> None:
        done = 0
        for number, answer in zip(numbers, answers, strict=True):
            pending = self._pending.pop(number, None)
            if pending is None:  # it was given up meanwhile, and counted then
                continue
            done += 1
            pending.answers[number - pending.first] = answer
            pending.left -= 1
            if not pending.left and not pending.answer.done():
                pending.answer.set_result(pending.answers)  # type: ignore[arg-type]
        self._counters.leave(done)

    def _give_up(self, pending: PendingRequest, refusal: Refusal) -> None:
        numbers = range(pending.first, pending.first + len(pending.answers))
        left = [number for number in numbers if self._pending.pop(number, None) is not None]
        self._counters.leave(len(left))
        if left and self.phase != "lost":
            if not self._left:
                self._loop.call_soon(self._flush)
            self._left += left
        if not pending.answer.done():
            pending.answer.set_result(refusal)

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._numbers:
            self._transport.write(wire.encode_rows(wire.ROWS, self._numbers, self._rows))
            self._numbers, self._rows = [], []
        if self._left:
            self._transport.write(wire.pickled(wire.ABANDONED, self._left))
            self._left = []

    def _sweep(self) -> None:
        now_s = self._loop.time()
        while self._pending:
            pending = next(iter(self._pending.values()))  # the oldest: all have the same time
            if pending.deadline_s > now_s:
                break
            self._give_up(pending, Refusal(504, f"No answer within {self._timeout_s:g} s."))
        self._loop.call_later(_SWEEP_S, self._sweep)

    def enter(self, phase: str) -> None:
        """Become ``ready``, or ``draining``: then readiness ends, and rows are still sent to the model."""
        if self.phase != "lost" and not (phase == "ready" and self.phase == "draining"):
            self.phase = phase
            self._on_change()

    def _lose(self) -> None:
        if self.phase == "lost":
            return
        self.phase = "lost"
        self.refuse_all(self.unready())
        self._on_change()
