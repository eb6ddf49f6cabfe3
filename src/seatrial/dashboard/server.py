"""The server: our page, its style sheet and scripts, and the API behind the guard."""

from __future__ import annotations

import contextlib
import gzip
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from seatrial.dashboard.api import Api
from seatrial.dashboard.connections import protocol
from seatrial.dashboard.feed import Feed
from seatrial.dashboard.guard import Guard
from seatrial.dashboard.projects import Projects
from seatrial.errors import SeatrialError
from seatrial.receipt.render.pages import style_sheet
from seatrial.runs.finalise import finalise
from seatrial.system.address import cannot_listen
from seatrial.system.names import Names

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

#: A client that does not take its last bytes does not hold the end up.
_SHUTDOWN_S = 1

#: Engines are asked each so many readings.
_TURNS = 10


def make_app(projects: Projects, feed: Feed, token: str | None, names: Names) -> Starlette:
    """The ASGI application; no answer has ``names`` in it."""
    files = {name: _File(data, Path(name).suffix) for name, data in _static().items()}
    files["look.css"] = _File(style_sheet().encode(), ".css")

    def serve(name: str) -> Route:
        async def answer(request: Request) -> Response:
            return files[name].answer(request)

        return Route("/" if name == "index.html" else f"/{name}", answer)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        feed.start()
        yield
        feed.stop()

    routes = [*(serve(name) for name in files), *Api(projects, feed, names).routes()]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token)], lifespan=lifespan)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises UsageError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise cannot_listen("dashboard", host, port, error) from error
    return made


class _Server(uvicorn.Server):
    """Ends the open streams first: they would never end by themselves."""

    feed: Feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.feed.stop()
        await super().shutdown(sockets)


def serve(app: Starlette, sock: socket.socket, feed: Feed) -> None:
    """Until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app,
        http=protocol(),
        ws="none",
        log_config=None,  # what goes wrong with one request or connection is no traceback on the terminal
        timeout_graceful_shutdown=_SHUTDOWN_S,
        server_header=False,
    )
    for name in ("uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    server = _Server(config)
    server.feed = feed
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[sock])


class Housekeeping:
    """Makes the receipts of runs that have ended, as ``runs ls`` does; asks engines now and then."""

    def __init__(self, projects: Projects, environ: Mapping[str, str]) -> None:
        self._projects, self._environ, self._turn = projects, environ, 0

    def __call__(self) -> None:
        self._turn += 1
        if self._turn % _TURNS:
            return
        for _, run in self._projects.runs():
            if not run.ended:
                try:
                    finalise(run, self._environ)
                except SeatrialError:  # its engine does not answer, or its plan is of another version: the list says so
                    continue


class _File:
    """A file in memory, plain and gzipped."""

    def __init__(self, data: bytes, suffix: str) -> None:
        self._plain, self._zipped, self._type = data, gzip.compress(data, 6), _TYPES[suffix]

    def answer(self, request: Request) -> Response:
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._zipped, media_type=self._type, headers={"content-encoding": "gzip"})
        return Response(self._plain, media_type=self._type)


def _static() -> dict[str, bytes]:
    folder = resources.files("seatrial.dashboard").joinpath("static")
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if Path(entry.name).suffix in _TYPES}
