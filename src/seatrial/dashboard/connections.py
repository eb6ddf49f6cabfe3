"""Connections of the dashboard's server: a client that dawdles, or many of them, take nothing from the others.

uvicorn has a time limit between requests and none for a request that never becomes whole.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol

#: A request's head must be here after so long, however the bytes trickle in.
PATIENCE_S = 10.0

#: Connections at a time. One more, and the oldest that waits for a request is closed, or else the oldest of all.
MOST_CLIENTS = 256


def protocol(patience_s: float = PATIENCE_S, most: int | None = None) -> type[H11Protocol]:
    """uvicorn's protocol with these limits, for one server.

    Args:
        most: default: MOST_CLIENTS, or less where few files may be open.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = most or max(8, min(MOST_CLIENTS, descriptors // 4))
    there: dict[Limited, None] = {}  # in the order in which they came

    class Limited(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            there[self] = None
            if len(there) > limit:
                oldest = next((each for each in there if each.waits()), next(iter(there)))
                oldest.transport.abort()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            there.pop(self, None)
            self._forget()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def waits(self) -> bool:
            """No request of it is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def _watch(self) -> None:
            if not self.waits():
                self._forget()
            elif self._deadline is None:  # one that runs is not put off by another byte
                self._deadline = self.loop.call_later(patience_s, self._give_up)

        def _forget(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            self._deadline = None
            if self.waits():
                self.transport.abort()

    return Limited
