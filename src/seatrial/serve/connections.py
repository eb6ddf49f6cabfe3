"""Limit the connections of a front: slow clients, or ten thousand of them, take nothing from the others.

uvicorn has a time limit between requests and none for a request that never becomes whole, no limit on a request's head,
and answers invalid HTTP in plain text.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import resource
import termios
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from seatrial.serve.counters import Counters

#: Seconds for a request's head and for its body, however the bytes trickle in.
HEAD_S, BODY_S = 10.0, 30.0
#: Most bytes of a request's head: twice nginx's limit (large_client_header_buffers 4 8k); and most headers, each of
#: which is a call: Apache accepts 100 (LimitRequestFields).
MOST_HEAD_BYTES, MOST_HEADERS = 64 * 1024, 128
#: Connections of a front at a time; less where few files may be open. One more gets 503.
MOST_CONNECTIONS = 20_000
#: Requests that wait on one connection for the answer before theirs.
_MOST_PIPELINED = 16
#: Bytes of answers that a client may leave unread.
_MOST_UNREAD_BYTES = 1 << 20
#: Pieces after which a body's chunks must have this many bytes on average: each piece copies those before it.
_MOST_PIECES, _PIECE_BYTES = 1000, 512
#: Files that a front has open besides its connections.
_OTHER_FILES = 64
#: Under this key a request's scope has its connection and uvicorn's own object for it.
_OWN = "seatrial.connection"

_OTHER = 2  # counters.KINDS
_CLOSE = (b"connection", b"close")
Headers = list[tuple[bytes, bytes]]


class Limited(HttpToolsProtocol):
    """A connection. ``protocol`` makes a class of it for each server.

    ``most``: connections that a server holds at a time. ``head_s``, ``body_s``: patience, see above.
    """

    counters: ClassVar[Counters]
    most: ClassVar[int]
    head_s: ClassVar[float]
    body_s: ClassVar[float]
    on_lost: Callable[[], None] | None = None
    _deadline: asyncio.TimerHandle | None = None
    _in_head, _in_body = True, False  # of no request yet, which is a head that has not come
    _head_bytes = _body_bytes = _pieces = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.counters.connected(1)
        if len(self.connections) > self.most:
            self._refuse(503, "Too many connections: try again in a second.")
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.counters.connected(-1)
        self._forget()
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            ends = self._head_bytes == len(data) and b"\r\n\r\n" in data[:MOST_HEAD_BYTES]
            if self._head_bytes > MOST_HEAD_BYTES and not ends:
                self._refuse(431, f"The request's head is longer than {MOST_HEAD_BYTES} bytes.")
                return
        super().data_received(data)
        if self._in_body or (self._in_head and self._head_bytes):
            self._watch()
        elif self._deadline is not None:
            self._forget()

    @property
    def unanswered(self) -> bool:
        """Return True if a whole request has no answer yet."""
        return not self._in_body and self.cycle is not None and not self.cycle.response_complete

    @property
    def half_sent(self) -> bool:
        """Return True if a part of a request has come."""
        return self._in_body or bool(self._head_bytes)

    @property
    def fresh(self) -> bool:
        """Return True if not even the beginning of a request has come."""
        return self.cycle is None and not self.half_sent

    @property
    def unread(self) -> bool:
        """Return True if bytes have come that this loop has not read yet."""
        if self.transport.is_closing():
            return False
        waiting = bytearray(4)
        fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, waiting)
        return any(waiting)

    def answer(self, cycle: RequestResponseCycle, status: int, headers: Headers, body: bytes, *, close: bool) -> None:
        """Write a whole answer at once: ASGI's ``send`` would make a packet of its head and check each header."""
        if not cycle.keep_alive or close:
            cycle.keep_alive = False
            headers = [*headers, _CLOSE]
        parts = [STATUS_LINE[status]]
        for name, value in (*self.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", body)
        self.transport.write(b"".join(parts))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        if not cycle.keep_alive:
            self.transport.close()
        elif self.transport.get_write_buffer_size() > _MOST_UNREAD_BYTES:
            self.transport.abort()
        cycle.on_response()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # a trailer, which is dropped
            self._count(b"")
        elif len(self.headers) >= MOST_HEADERS:
            raise ValueError("too many headers")  # which the parser passes on as an error of its own
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._head_bytes, self._body_bytes, self._pieces = False, True, 0, 0, 0
        super().on_headers_complete()
        if len(self.pipeline) > _MOST_PIPELINED:
            raise ValueError("too many pieces")  # which the parser passes on as an error of its own
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # with a key of ours
        scope[_OWN] = self, self.cycle

    def on_body(self, body: bytes) -> None:
        self._count(body)
        super().on_body(body)

    def _count(self, piece: bytes) -> None:
        self._pieces += 1
        self._body_bytes += len(piece)
        if self._pieces > _MOST_PIECES and self._body_bytes < _PIECE_BYTES * self._pieces:
            raise ValueError("too many pieces")  # which the parser passes on as an error of its own

    def on_message_complete(self) -> None:
        self._in_head, self._in_body = True, False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is not a valid HTTP request, or one of too many headers or pieces.")

    def _refuse(self, status: int, sentence: str) -> None:
        """Send an error in place of the application, and end the connection."""
        self.counters.answered(_OTHER, status)
        if self.cycle is None or not self.cycle.response_started:
            body = json.dumps({"error": sentence}).encode()
            head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _watch(self) -> None:
        if self._deadline is None:  # another byte does not extend it
            self._deadline = self.loop.call_later(self.body_s if self._in_body else self.head_s, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._in_body or self._head_bytes:
            self._refuse(408, "The request did not come to its end in time.")
        else:
            self.transport.close()


def protocol(counters: Counters, body_s: float = BODY_S, head_s: float = HEAD_S) -> type[Limited]:
    """Return uvicorn's protocol with these limits, for one server."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(8, min(MOST_CONNECTIONS, descriptors - _OTHER_FILES))
    return type("Limited", (Limited,), {"counters": counters, "most": most, "body_s": body_s, "head_s": head_s})


def of(scope: Any) -> tuple[Any, RequestResponseCycle]:
    """Return a request's connection, of the class that ``protocol`` made, and uvicorn's object for the request."""
    connection, cycle = scope[_OWN]
    return connection, cycle
