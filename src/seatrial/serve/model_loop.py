"""Run the model in the process that holds it: take rows of the fronts, compute a batch, send the answers.

While a batch is computed the next rows gather in the sockets, so that load itself makes large batches.
"""

from __future__ import annotations

import pickle
import selectors
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from seatrial.serve import wire
from seatrial.serve.counters import Counters
from seatrial.serve.errors import BadInputError, DeviceLostError
from seatrial.serve.served_model import Answer, Row, ServedModel

_READ_BYTES = 1 << 20
#: Failures of the model that are printed with a traceback; later ones are only counted.
_SHOWN_FAILURES = 5
#: Time in which a failed batch is tried again in parts: everybody else waits meanwhile.
_RETRY_S = 2.0
#: A row as (front, its number there).
Key = tuple[int, int]


class Batcher:
    """Keep waiting rows, first in, first out, up to ``patience_s`` for a fuller batch. Not for several threads."""

    def __init__(self, max_batch: int, patience_s: float) -> None:
        self._max_batch, self._patience_s = max_batch, patience_s
        self._waiting: deque[tuple[Key, Row, float]] = deque()
        self._abandoned: set[Key] = set()

    def add(self, front: int, numbers: Iterable[int], rows: Iterable[Row], now_s: float) -> None:
        """Append rows that have just come."""
        self._waiting.extend(((front, number), row, now_s) for number, row in zip(numbers, rows, strict=True))

    def abandon(self, front: int, numbers: Iterable[int]) -> None:
        """Mark rows whose clients have left. Rows that have been computed already are not here."""
        self._abandoned |= {(front, number) for number in numbers} & {key for key, _, _ in self._waiting}

    def abandon_front(self, front: int) -> int:
        """Remove every row of a front that is gone; return how many."""
        before = len(self._waiting)
        self._waiting = deque(each for each in self._waiting if each[0][0] != front)
        self._abandoned = {key for key in self._abandoned if key[0] != front}
        return before - len(self._waiting)

    def patience_left_s(self, now_s: float, expected: int) -> float | None:
        """Return how long to wait for a fuller batch: 0 if all ``expected`` rows are here, None if nothing waits."""
        if not self._waiting:
            return None
        if len(self._waiting) >= self._max_batch or len(self._waiting) >= expected:
            return 0.0
        return max(0.0, self._waiting[0][2] + self._patience_s - now_s)

    def take(self) -> tuple[list[Key], list[Row], int]:
        """Return the next batch, and how many abandoned rows were left out for it."""
        keys: list[Key] = []
        rows: list[Row] = []
        left_out = 0
        while self._waiting and len(rows) < self._max_batch:
            key, row, _ = self._waiting.popleft()
            if key in self._abandoned:
                self._abandoned.discard(key)
                left_out += 1
                continue
            keys.append(key)
            rows.append(row)
        return keys, rows, left_out


class ModelLoop:
    """The loop. ``links``: front → our end of its socketpair.

    ``on_gone``: called if a front's link has ended; returns a new one, or None. ``tick``: called about once a second.
    """

    def __init__(
        self,
        model: ServedModel,
        links: dict[int, socket.socket],
        batcher: Batcher,
        counters: Counters,
        on_gone: Callable[[int], socket.socket | None],
        tick: Callable[[], None],
    ) -> None:
        self._model, self._batcher, self._counters = model, batcher, counters
        self._on_gone, self._tick = on_gone, tick
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, _Link] = {}
        self._failures = 0
        for front, sock in links.items():
            self._join(front, sock)

    def send_all(self, data: bytes) -> None:
        """Send to every front."""
        for link in list(self._links.values()):
            link.send(data)

    def run(self) -> None:
        """Compute until every front is gone. Raises DeviceLostError after it has sent that to every front."""
        tick_s = time.monotonic()
        while self._links:
            if (now_s := time.monotonic()) >= tick_s:
                self._tick()
                tick_s = now_s + 1.0
            patience_s = self._batcher.patience_left_s(now_s, self._counters.waiting())
            wait_s = tick_s - now_s if patience_s is None else patience_s
            for key, events in self._selector.select(wait_s):
                self._serve_link(key.data, events)
            if self._batcher.patience_left_s(time.monotonic(), self._counters.waiting()) == 0.0:
                self._compute()

    def _join(self, front: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        link = self._links[front] = _Link(front, sock, self._selector)
        self._selector.register(sock, selectors.EVENT_READ, link)

    def _serve_link(self, link: _Link, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            link.flush()
        if not events & selectors.EVENT_READ:
            return
        frames = link.receive()
        for kind, payload in frames or ():
            if kind == wire.ROWS:
                self._batcher.add(link.front, *wire.decode_rows(payload), time.monotonic())
            elif kind == wire.ABANDONED:
                self._batcher.abandon(link.front, pickle.loads(payload))
        if frames is None:
            self._leave(link)

    def _leave(self, link: _Link) -> None:
        self._selector.unregister(link.sock)
        link.sock.close()
        del self._links[link.front]
        self._counters.abandoned(self._batcher.abandon_front(link.front))
        if (new := self._on_gone(link.front)) is not None:
            self._join(link.front, new)

    def _compute(self) -> None:
        keys, rows, left_out = self._batcher.take()
        self._counters.abandoned(left_out)
        if not rows:
            return
        began_ns = time.perf_counter_ns()
        try:
            self._answer(keys, rows)
        except DeviceLostError:
            self.send_all(wire.pickled(wire.LOST, "The GPU no longer computes."))
            raise
        self._counters.computed(len(rows), time.perf_counter_ns() - began_ns)

    def _answer(self, keys: list[Key], rows: list[Row]) -> None:
        """Compute; halve a batch that fails until the row that fails stands alone. Raises DeviceLostError."""
        parts = [(keys, rows)]
        end_s = time.monotonic() + _RETRY_S
        while parts:
            keys, rows = parts.pop()
            try:
                answers = self._model.predict(rows)
                if len(answers) != len(rows):
                    raise RuntimeError(f"the model gave {len(answers)} answers to {len(rows)} rows")
                self._send_answers(keys, answers)
            except DeviceLostError:
                raise
            except Exception as error:  # noqa: BLE001 — the model's code, or a library's: the server goes on
                if len(rows) > 1 and time.monotonic() < end_s:
                    half = len(rows) // 2
                    parts += [(keys[half:], rows[half:]), (keys[:half], rows[:half])]
                elif isinstance(error, BadInputError) and len(rows) == 1:
                    self._refuse(keys, 400, str(error))
                else:
                    self._fail(keys)

    def _send_answers(self, keys: Sequence[Key], answers: Sequence[Answer]) -> None:
        for front, link in self._links.items():
            if ours := [at for at, key in enumerate(keys) if key[0] == front]:
                link.send(wire.encode_rows(wire.ANSWERS, [keys[at][1] for at in ours], [answers[at] for at in ours]))

    def _fail(self, keys: Sequence[Key]) -> None:
        self._failures += 1
        if self._failures <= _SHOWN_FAILURES:
            traceback.print_exc()
            sys.stderr.flush()
        sentence = "this request." if len(keys) == 1 else "a batch with this request: try again."
        self._refuse(keys, 500, f"The model failed on {sentence}")

    def _refuse(self, keys: Sequence[Key], status: int, sentence: str) -> None:
        for front, link in self._links.items():
            if ours := [number for each, number in keys if each == front]:
                link.send(wire.pickled(wire.FAILED, (ours, status, sentence)))


class _Link:
    """Our end of a front's socketpair; a front that does not read blocks nobody."""

    def __init__(self, front: int, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        self.front, self.sock, self._selector = front, sock, selector
        self._frames, self._unsent = wire.Frames(), bytearray()

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Return frames that have come; None at the end."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self._frames.feed(data) if data else None

    def send(self, data: bytes) -> None:
        if not self._unsent:
            try:
                sent = self.sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:  # gone: the next receive finds that
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._selector.modify(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        self._unsent += data

    def flush(self) -> None:
        try:
            sent = self.sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._selector.modify(self.sock, selectors.EVENT_READ, self)
