"""A server with limits: a client that dawdles, or many of them, take nothing from the others.

uvicorn has a time limit between requests and none for a request that never becomes whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections import Counter
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from seatrial.system.address import cannot_listen

#: Time for a request's head, however the bytes trickle in.
PATIENCE_S = 10.0
#: Connections at a time. With one more, the client with most of them loses its oldest idle one, or else its oldest.
MOST_CLIENTS = 256
#: A client that does not read its last bytes does not delay the end.
_SHUTDOWN_S = 1


def listen(verb: str, host: str, port: int) -> socket.socket:
    """Return a bound socket. Raises UsageError with another address to try."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise cannot_listen(verb, host, port, error) from error
    return made


class Server(uvicorn.Server):
    """Serves an application.

    Args:
        on_start: called once the server accepts connections. on_stop: called before open streams are awaited, which
            would never end by themselves.
        patience_s, most: limits of connections; by default as above, and fewer if few files may be open.
    """

    def __init__(
        self,
        app: ASGIApp,
        on_start: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
        *,
        patience_s: float = PATIENCE_S,
        most: int | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=_protocol(patience_s, most),
            ws="none",
            log_config=None,  # failed requests and connections print no traceback
            timeout_graceful_shutdown=_SHUTDOWN_S,
            server_header=False,
        )
        super().__init__(config)
        self._on_start, self._on_stop = on_start, on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)

    def serve_on(self, sock: socket.socket) -> None:
        """Serve until SIGINT or SIGTERM."""
        for name in ("uvicorn", "asyncio"):
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        # uvicorn raises the signal again when it has shut down
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            self.run(sockets=[sock])


def _protocol(patience_s: float, most: int | None) -> type[H11Protocol]:
    """Return uvicorn's protocol with these limits, for one server."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = most or max(8, min(MOST_CLIENTS, descriptors // 4))
    connected: dict[Limited, None] = {}  # in the order in which they came

    class Limited(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connected[self] = None
            if len(connected) > limit:
                addresses = {each: each.client and each.client[0] for each in connected if each is not self}
                most = Counter(addresses.values()).most_common(1)[0][0]
                theirs = [each for each, address in addresses.items() if address == most]
                next((each for each in theirs if each.is_waiting()), theirs[0]).transport.abort()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            connected.pop(self, None)
            self._cancel_deadline()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def is_waiting(self) -> bool:
            """Return whether none of its requests is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def _watch(self) -> None:
            if not self.is_waiting():
                self._cancel_deadline()
            elif self._deadline is None:  # a running deadline is not put off by another byte
                self._deadline = self.loop.call_later(patience_s, self._give_up)

        def _cancel_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            self._deadline = None
            if self.is_waiting():
                self.transport.abort()

    return Limited
