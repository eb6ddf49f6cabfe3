"""The web application: our page with its scripts, the API behind the guard, and /metrics."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from seatrial.errors import SeatrialError
from seatrial.monitor.api import Api
from seatrial.monitor.feed import Feed
from seatrial.monitor.prometheus import CONTENT_TYPE, Exposition
from seatrial.monitor.run_list import Projects
from seatrial.receipt.render.pages import style_sheet
from seatrial.runs.finish import finalise
from seatrial.system.address import names_this_machine
from seatrial.system.host import Host
from seatrial.web.guard import Guarded

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

#: Readings between two queries of the engines.
_TURNS = 10


_INDEX = "<!doctype html><title>seatrial metrics</title><a href=/metrics>metrics</a>\n"


def dashboard_app(api: Api, feed: Feed, exposition: Exposition, token: str | None) -> Starlette:
    """Return the ASGI application: page, API and metrics."""
    files = {name: _File(data, Path(name).suffix) for name, data in _static().items()}
    files["look.css"] = _File(style_sheet().encode(), ".css")

    def serve(name: str) -> Route:
        async def answer(request: Request) -> Response:
            return files[name].answer(request)

        return Route("/" if name == "index.html" else f"/{name}", answer)

    return _app(
        [*(serve(name) for name in files), *api.routes()],
        feed,
        exposition,
        Middleware(Guarded, token=token, accepts=names_this_machine),
    )


def metrics_app(feed: Feed, exposition: Exposition, token: str | None, *, any_host: bool) -> Starlette:
    """Return the ASGI application of ``dashboard --metrics-only``: no pages, and any name of this machine."""

    async def index(request: Request) -> Response:
        return HTMLResponse(_INDEX)

    accepts = (lambda _: True) if any_host else names_this_machine
    guard = Middleware(Guarded, token=token, accepts=accepts)
    return _app([Route("/", index)], feed, exposition, guard)


def _app(routes: list[Route], feed: Feed, exposition: Exposition, guard: Middleware) -> Starlette:
    async def metrics(request: Request) -> Response:
        plain, zipped = await run_in_threadpool(exposition.text)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(zipped, headers={"content-type": CONTENT_TYPE, "content-encoding": "gzip"})
        return Response(plain, headers={"content-type": CONTENT_TYPE})

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        feed.start()
        yield
        feed.stop()

    return Starlette(routes=[*routes, Route("/metrics", metrics)], middleware=[guard], lifespan=lifespan)


class Housekeeping:
    """Makes the receipts of runs that have ended, as ``runs ls`` does; asks engines now and then."""

    def __init__(self, projects: Projects, host: Host) -> None:
        self._projects, self._host, self._turn = projects, host, 0

    def __call__(self) -> None:
        self._turn += 1
        if self._turn % _TURNS:
            return
        for _, run in self._projects.runs():
            if not run.ended:
                try:
                    finalise(run, self._host)
                except (
                    SeatrialError
                ):  # its engine does not answer, or its plan is of another version: the list shows it
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
    folder = resources.files("seatrial.monitor").joinpath("static")
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if Path(entry.name).suffix in _TYPES}
