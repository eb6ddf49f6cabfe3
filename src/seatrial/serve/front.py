"""Accept connections, read small requests (seatrial.serve.decoder reads the rest), answer for the model. No torch.

    python -m seatrial.serve.front DESCRIPTORS    (started by python -m seatrial.serve)

A front answers 503 until the model is ready, drains after a stop signal, and ends with 1 when the model is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from typing import Any

import uvicorn

from seatrial.serve import wire
from seatrial.serve.connections import protocol
from seatrial.serve.counters import Counters
from seatrial.serve.http.app import App
from seatrial.serve.model_link import ModelLink, Refusal
from seatrial.serve.options import Options
from seatrial.serve.sockets import STOPPING, StopSignals, emptied, refuse_new

#: Between requests of one connection, in seconds.
KEEP_ALIVE_S = 60
#: Time between the loss of readiness and the first refused connection: a router needs it to notice.
LINGER_S = 0.5
#: When the model is lost: time to write the refusals out.
_LAST_WORDS_S = 0.5
_TURN_S = 0.02
#: Seconds between checks for a signal: a file in memory cannot be waited for.
_SIGNALS_S = 0.05
#: Objects between two garbage collections. A parsed image is thirty; Python's default is 700.
_GARBAGE = 20_000
#: Times of a drain: for a request that is half sent to become whole, and for the model to answer what there is.
#: Together with LINGER_S less than the 30 s that a target has between SIGTERM and SIGKILL (job.model.Job.grace_s).
_HALF_SENT_S, _ANSWERS_S = 3.0, 25.0
#: Time of a drain for a client that has connected and sent nothing yet to begin.
_FRESH_S = 1.0


class Front:
    """One front, with its ends of the socketpair and common memory; ``signals`` are those to its starter."""

    def __init__(
        self, options: Options, listener: socket.socket, sock: socket.socket, counters: Counters, signals: StopSignals
    ) -> None:
        self._listener, self._sock, self._signals = listener, sock, signals
        self._link = ModelLink(counters, options.queue, options.timeout_s, self._changed)
        self._app = App(options, self._link, counters)
        config = uvicorn.Config(
            self._app,
            http=protocol(counters),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=2,
            backlog=4096,
        )
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]  # the front handles them
        self._end: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Serve until drained (0) or lost (1)."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=self._sock)
        self._poll_signals()
        await self._server.serve(sockets=[self._listener])
        if self._end is not None:
            await self._end
        lost = self._link.phase == "lost"
        self._link.close()
        self._app.close()
        await asyncio.sleep(0)
        return 1 if lost else 0

    def _poll_signals(self) -> None:
        if self._signals.came():
            self._link.enter("draining")
        else:
            asyncio.get_running_loop().call_later(_SIGNALS_S, self._poll_signals)

    def _changed(self) -> None:
        phase = self._link.phase
        if phase == "lost" or (phase == "draining" and self._end is None):
            self._end = asyncio.ensure_future(self._drain() if phase == "draining" else asyncio.sleep(_LAST_WORDS_S))
            self._end.add_done_callback(self._exit)

    async def _drain(self) -> None:
        """Answer requests that have come and that still come for a moment, then end."""
        await asyncio.sleep(LINGER_S)
        refuse_new(self._listener)
        await asyncio.sleep(5 * _TURN_S)  # earlier connections are accepted in these turns
        await emptied(self._listener, _HALF_SENT_S)
        for server in self._server.servers:
            server.close()
        await asyncio.sleep(LINGER_S / 2)
        began_s = asyncio.get_running_loop().time()
        while self._link.phase != "lost" and self._busy(asyncio.get_running_loop().time() - began_s):
            self._close_idle(asyncio.get_running_loop().time() - began_s)
            await asyncio.sleep(_TURN_S)
        self._link.refuse_all(Refusal(503, "The server ends, and the model has not answered yet."))
        await asyncio.sleep(0)  # so that refusals are written

    def _exit(self, _: asyncio.Task[None]) -> None:
        """End also when the drain has failed: ``run`` then raises its error."""
        self._server.should_exit = True

    def _busy(self, drained_s: float) -> bool:
        """Return True if there is a request that is worth waiting for after so long."""
        if drained_s > _ANSWERS_S:
            return False
        connections: set[Any] = self._server.server_state.connections
        patient = drained_s < _HALF_SENT_S
        waited_for = any(each.unanswered or (patient and (each.half_sent or each.unread)) for each in connections)
        fresh = drained_s < _FRESH_S and any(each.fresh for each in connections)
        return waited_for or fresh or not self._link.idle

    def _close_idle(self, drained_s: float) -> None:
        """Close connections on which nothing has arrived, not even bytes that this loop has yet to read."""
        for each in list(self._server.server_state.connections):
            connection: Any = each
            if connection.fresh and drained_s < _FRESH_S:
                continue
            if not (connection.unanswered or connection.half_sent or connection.unread):
                connection.transport.close()


def main() -> int:
    """Run a front in this process, to its end; return the exit code."""
    import uvloop

    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # they come to the whole group; the model's process handles them
    listener, link, signals, memory, places, place = (int(text) for text in sys.argv[1:])
    sock = socket.socket(fileno=link)
    options: Options | None = wire.receive(sock)  # with the token, which is in no argument list and no environment
    if options is None:
        return 1
    for name in ("uvicorn", "asyncio", "python_multipart", "multipart"):  # no traceback for a failed request
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    gc.freeze()  # imported modules are not garbage, and are not searched again
    gc.set_threshold(_GARBAGE)
    given = socket.socket(fileno=listener), sock, Counters(memory, places, place), StopSignals(signals)

    async def run() -> int:
        return await Front(options, *given).run()

    return uvloop.run(run())


if __name__ == "__main__":
    sys.exit(main())
