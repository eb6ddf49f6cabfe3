"""Computing: the loop of the process (or thread) that holds the model.

One turn: take what the fronts have sent, compute a batch of it, send the answers. While a batch is computed the next
rows gather in the sockets, so that load itself makes large batches.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence

from seatrial.serve import wire
from seatrial.serve.batcher import Batcher, Key
from seatrial.serve.counts import Counts
from seatrial.serve.errors import BadInputError, DeviceLostError
from seatrial.serve.served_model import Answer, Row, ServedModel

_READ_BYTES = 1 << 20
#: So many failures of the model are told with a traceback on stderr; after them the count is all.
_TOLD = 5
#: A batch that failed is tried again in parts for so long: everybody else waits meanwhile.
_RETRY_S = 2.0


class Computing:
    """The loop.

    Args:
        links: front → our end of its socketpair. on_gone: a front's link has ended; returns a new one, or None.
        tick: called about once a second.
    """

    def __init__(
        self,
        model: ServedModel,
        links: dict[int, socket.socket],
        batcher: Batcher,
        counts: Counts,
        on_gone: Callable[[int], socket.socket | None],
        tick: Callable[[], None],
    ) -> None:
        self._model, self._batcher, self._counts = model, batcher, counts
        self._on_gone, self._tick = on_gone, tick
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, _Link] = {}
        self._failures = 0
        for front, sock in links.items():
            self._join(front, sock)

    def send_all(self, data: bytes) -> None:
        """To every front."""
        for link in list(self._links.values()):
            link.send(data)

    def run(self) -> None:
        """Until every front is gone. Raises DeviceLostError, with every front told."""
        tick_s = time.monotonic()
        while self._links:
            now_s = time.monotonic()
            if now_s >= tick_s:
                self._tick()
                tick_s = now_s + 1.0
            patience_s = self._batcher.patience_left_s(now_s, self._counts.waiting())
            wait_s = tick_s - now_s if patience_s is None else patience_s
            for key, events in self._selector.select(wait_s):
                self._serve_link(key.data, events)
            if self._batcher.patience_left_s(time.monotonic(), self._counts.waiting()) == 0.0:
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
                self._batcher.abandon(link.front, wire.decode_numbers(payload))
        if frames is None:
            self._leave(link)

    def _leave(self, link: _Link) -> None:
        self._selector.unregister(link.sock)
        link.sock.close()
        del self._links[link.front]
        self._counts.abandoned(self._batcher.abandon_front(link.front))
        new = self._on_gone(link.front)
        if new is not None:
            self._join(link.front, new)

    def _compute(self) -> None:
        keys, rows, left_out = self._batcher.take()
        if left_out:
            self._counts.abandoned(left_out)
        if not rows:
            return
        began_ns = time.perf_counter_ns()
        try:
            self._answer(keys, rows)
        except DeviceLostError as error:
            self.send_all(wire.pickled(wire.LOST, "The GPU no longer computes."))
            raise error
        self._counts.computed(len(rows), time.perf_counter_ns() - began_ns)

    def _answer(self, keys: list[Key], rows: list[Row]) -> None:
        """A batch that fails is halved until what is to blame stands alone. Raises DeviceLostError."""
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
            except Exception as error:  # noqa: BLE001 — the user's code, or a library's: the server goes on
                if len(rows) > 1 and time.monotonic() < end_s:
                    half = len(rows) // 2
                    parts += [(keys[half:], rows[half:]), (keys[:half], rows[:half])]
                elif isinstance(error, BadInputError) and len(rows) == 1:
                    self._refuse(keys, 400, str(error))
                else:
                    self._failed(keys)

    def _send_answers(self, keys: Sequence[Key], answers: Sequence[Answer]) -> None:
        if len(self._links) == 1:
            link = next(iter(self._links.values()))
            link.send(wire.encode_rows(wire.ANSWERS, [number for _, number in keys], answers))
            return
        for front, link in self._links.items():
            ours = [at for at, key in enumerate(keys) if key[0] == front]
            if ours:
                link.send(wire.encode_rows(wire.ANSWERS, [keys[at][1] for at in ours], [answers[at] for at in ours]))

    def _failed(self, keys: Sequence[Key]) -> None:
        self._failures += 1
        if self._failures <= _TOLD:
            traceback.print_exc()
            sys.stderr.flush()
        alone = "The model failed on this request."
        self._refuse(
            keys, 500, alone if len(keys) == 1 else "The model failed on a batch with this request: try again."
        )

    def _refuse(self, keys: Sequence[Key], status: int, sentence: str) -> None:
        for front, link in self._links.items():
            ours = [number for each, number in keys if each == front]
            if ours:
                link.send(wire.pickled(wire.FAILED, (ours, status, sentence)))


class _Link:
    """Our end of a front's socketpair; a front that does not read holds nobody up."""

    def __init__(self, front: int, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        self.front, self.sock, self._selector = front, sock, selector
        self._frames, self._unsent = wire.Frames(), bytearray()

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Frames that have come; None at the end."""
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
            except OSError:  # gone: the next receive says so
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
