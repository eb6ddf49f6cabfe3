"""A front: accepts, reads what is small (seatrial.serve.decoder reads the rest), and answers for the model. No torch.

    python -m seatrial.serve.front DESCRIPTORS    (started by python -m seatrial.serve)

Its life: it answers 503 until the model is ready; drains when the program is asked to end; ends with 1 when the model
is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import pickle
import signal
import socket
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import uvicorn

from seatrial.serve import wire
from seatrial.serve.connections import protocol
from seatrial.serve.counts import Counts
from seatrial.serve.http.app import App
from seatrial.serve.http.site import Site
from seatrial.serve.listening import emptied, refuse_new
from seatrial.serve.model_link import ModelLink, Refusal
from seatrial.serve.options import Options
from seatrial.serve.stop_signals import STOPPING, StopSignals

#: Between requests of one connection, in seconds.
KEEP_ALIVE_S = 60
#: Readiness is gone for so long before new connections are refused: whoever routes requests here can learn of it.
LINGER_S = 0.5
#: When the model is lost: time to write the refusals out.
_LAST_WORDS_S = 0.5
_TURN_S = 0.02
#: Between two looks for a signal: no file in memory can be waited for.
_SIGNALS_S = 0.05
#: Objects between two looks for garbage. A parsed image is thirty: Python looks at 700, after every twentieth request.
_GARBAGE = 20_000
#: In a drain: a request that is half sent has so long to become whole, and the model so long to answer what there is.
#: Together with LINGER_S less than the 30 s that a target has between SIGTERM and SIGKILL (job.model.Job.grace_s).
_HALF_SENT_S, _ANSWERS_S = 3.0, 25.0
#: In a drain: who has connected and sent nothing yet has so long to begin.
_FRESH_S = 1.0


@dataclass(frozen=True)
class Place:
    """What a front is given by the process that starts it.

    Attributes:
        listener: bound. link: its end of the socketpair. counts: its place in the common memory.
        signals: to the process that starts it; None where that is this one.
    """

    options: Options
    listener: socket.socket
    link: socket.socket
    counts: Counts
    signals: StopSignals | None


class _Server(uvicorn.Server):
    """Signals and the end are the front's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Front:
    """One front."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._link = ModelLink(place.counts, place.options.queue, place.options.timeout_s, self._changed)
        self._app = App(Site(place.options, self._link, place.counts))
        config = uvicorn.Config(
            self._app,
            http=protocol(place.counts),
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
        self._server = _Server(config)
        self._end: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Until drained (0) or lost (1)."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._link, sock=self._place.link)
        if self._place.signals is not None:
            self._look_for_signals(self._place.signals)
        else:
            for number in STOPPING:
                loop.add_signal_handler(number, self._link.enter_drain)
        await self._server.serve(sockets=[self._place.listener])
        if self._end is not None:
            await self._end
        lost = self._link.phase == "lost"
        self._link.close()
        self._app.close()
        await asyncio.sleep(0)
        return 1 if lost else 0

    def _look_for_signals(self, signals: StopSignals) -> None:
        if signals.came():
            self._link.enter_drain()
        else:
            asyncio.get_running_loop().call_later(_SIGNALS_S, self._look_for_signals, signals)

    def _changed(self) -> None:
        phase = self._link.phase
        if phase == "draining" and self._end is None:
            self._end = asyncio.ensure_future(self._drain())
            self._end.add_done_callback(self._exit)
        elif phase == "lost":
            self._end = asyncio.ensure_future(self._give_up())

    async def _drain(self) -> None:
        """Answer what has come and what still comes for a moment, then end."""
        await asyncio.sleep(LINGER_S)
        refuse_new(self._place.listener)
        await asyncio.sleep(5 * _TURN_S)  # what had been connected before is accepted in these turns
        await emptied(self._place.listener, _HALF_SENT_S)
        for server in self._server.servers:
            server.close()
        await asyncio.sleep(LINGER_S / 2)
        began_s = asyncio.get_running_loop().time()
        while self._link.phase != "lost" and self._busy(asyncio.get_running_loop().time() - began_s):
            self._close_idle(asyncio.get_running_loop().time() - began_s)
            await asyncio.sleep(_TURN_S)
        self._link.refuse_all(Refusal(503, "The server ends, and the model has not answered yet."))
        await asyncio.sleep(0)  # so that what was refused is written

    def _exit(self, _: asyncio.Task[None]) -> None:
        """Also when the drain has failed: ``run`` then raises what it raised."""
        self._server.should_exit = True

    async def _give_up(self) -> None:
        await asyncio.sleep(_LAST_WORDS_S)
        self._server.should_exit = True

    def _busy(self, drained_s: float) -> bool:
        """Whether something has to be answered that is worth waiting for after so long."""
        if drained_s > _ANSWERS_S:
            return False
        connections: set[Any] = self._server.server_state.connections
        patient = drained_s < _HALF_SENT_S
        waited_for = any(each.unanswered or (patient and (each.half_sent or each.unread)) for each in connections)
        fresh = drained_s < _FRESH_S and any(each.fresh for each in connections)
        return waited_for or fresh or not self._link.idle

    def _close_idle(self, drained_s: float) -> None:
        """Connections that nothing has come on, also nothing that this loop has not read yet."""
        for each in list(self._server.server_state.connections):
            connection: Any = each
            if connection.fresh and drained_s < _FRESH_S:
                continue
            if not (connection.unanswered or connection.half_sent or connection.unread):
                connection.transport.close()


def quiet() -> None:
    """What goes wrong with one request or connection is no traceback on the terminal."""
    for name in ("uvicorn", "asyncio", "python_multipart", "multipart"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def run(place: Place) -> int:
    """A front until its end; the exit code."""
    import uvloop

    quiet()
    gc.freeze()  # what has been imported is no garbage, and is not looked at again
    gc.set_threshold(_GARBAGE)

    async def main() -> int:
        return await Front(place).run()

    return uvloop.run(main())


def main() -> int:
    """Of a process of its own."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # they come to the whole group; what counts is the model's process
    listener, link, signals, memory, places, place = (int(text) for text in sys.argv[1:])
    sock = socket.socket(fileno=link)
    options = _options(sock)
    if options is None:
        return 1
    counts = Counts(memory, places, place)
    return run(Place(options, socket.socket(fileno=listener), sock, counts, StopSignals(signals)))


def _options(sock: socket.socket) -> Options | None:
    """The first frame: the options, and in them the token, which is in no argument list and no environment."""
    head = sock.recv(5, socket.MSG_WAITALL)
    if len(head) < 5:
        return None
    size = int.from_bytes(head[:4], "little")
    payload = sock.recv(size, socket.MSG_WAITALL)
    if len(payload) < size or head[4] != wire.OPTIONS:
        return None
    options: Options = pickle.loads(payload)
    return options


if __name__ == "__main__":
    sys.exit(main())
