"""The web application: our page, the API behind the guard, receipts' own pages, /metrics, and the feed of readings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from seatrial.errors import RunNotFoundError, SeatrialError
from seatrial.monitor.compare import compare, to_json
from seatrial.monitor.prometheus import CONTENT_TYPE, Exposition
from seatrial.monitor.reading import Read, unread
from seatrial.monitor.run_view import Listing, Receipts, read_log, run_view
from seatrial.receipt.model import FIXED, Receipt, scrubbed
from seatrial.receipt.render import pages
from seatrial.receipt.render.pages import style_sheet
from seatrial.runs.live import look
from seatrial.runs.run import Run
from seatrial.runs.status import finalise
from seatrial.runs.store import Projects
from seatrial.system.address import names_this_machine
from seatrial.system.host import Host
from seatrial.system.names import Names
from seatrial.system.text import visible_in
from seatrial.web.guard import Guarded

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
#: Readings between two queries of the engines.
_TURNS = 10

_INDEX = "<!doctype html><title>seatrial metrics</title><a href=/metrics>metrics</a>\n"


def dashboard_app(api: Api, feed: Feed, exposition: Exposition, token: str | None) -> Starlette:
    """Return the ASGI application: page, API and metrics."""
    folder = resources.files("seatrial.monitor").joinpath("static")
    files = {entry.name: entry.read_bytes() for entry in folder.iterdir() if Path(entry.name).suffix in _TYPES}
    files["look.css"] = style_sheet().encode()

    def serve(name: str) -> Route:
        async def answer(request: Request) -> Response:
            return Response(files[name], media_type=_TYPES[Path(name).suffix])

        return Route("/" if name == "index.html" else f"/{name}", answer)

    guard = Middleware(Guarded, token=token, accepts=names_this_machine)
    return _app([*(serve(name) for name in files), *api.routes()], feed, exposition, guard)


def metrics_app(feed: Feed, exposition: Exposition, token: str | None, *, any_host: bool) -> Starlette:
    """Return the ASGI application of ``dashboard --metrics-only``: no pages, and any name of this machine."""

    async def index(request: Request) -> Response:
        return HTMLResponse(_INDEX)

    guard = Middleware(Guarded, token=token, accepts=(lambda _: True) if any_host else names_this_machine)
    return _app([Route("/", index)], feed, exposition, guard)


def _app(routes: list[Route], feed: Feed, exposition: Exposition, guard: Middleware) -> Starlette:
    async def metrics(request: Request) -> Response:
        return Response(await run_in_threadpool(exposition.text), headers={"content-type": CONTENT_TYPE})

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        feed.start()
        yield
        feed.stop()

    middleware = [guard, Middleware(GZipMiddleware, compresslevel=1)]
    return Starlette(routes=[*routes, Route("/metrics", metrics)], middleware=middleware, lifespan=lifespan)


class Housekeeping:
    """Makes the receipts of runs that have ended, as ``runs ls`` does; queries engines now and then."""

    def __init__(self, projects: Projects, host: Host) -> None:
        self._projects, self._host, self._turn = projects, host, 0

    def __call__(self) -> None:
        self._turn += 1
        if self._turn % _TURNS:
            return
        for _, run in self._projects.runs():
            if not run.ended:
                # No engine answers, or its plan is of another version: the list shows it.
                with contextlib.suppress(SeatrialError):
                    finalise(run, self._host)


# ------------------------------------------------------------------------------------------------------- the API

#: A receipt's page is in a frame that may load and run nothing; of our origin, so that its height can be measured.
_RECEIPT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox allow-same-origin; frame-ancestors 'self'"


class Api:
    """Endpoints over projects' runs and this machine's telemetry; a page may be shown, so it has no ``names``."""

    def __init__(self, projects: Projects, feed: Feed, names: Names) -> None:
        self._projects, self._feed, self._names, self._receipts = projects, feed, names, Receipts()
        self._listing = Listing(projects)

    def routes(self) -> list[Route]:
        return [
            Route("/api/events", self.events),
            Route("/api/history", self.history),
            Route("/api/projects", self._answering(self.projects)),
            Route("/api/runs", self._answering(self.runs)),
            Route("/api/runs/{id}", self._answering(self.run)),
            Route("/api/runs/{id}/log", self._answering(self.log)),
            Route("/api/compare", self._answering(self.compare)),
            Route("/receipts/{id}", self.receipt),
        ]

    async def events(self, request: Request) -> Response:
        """Send server-sent events, one a reading."""
        return StreamingResponse(self._feed.events(), media_type="text/event-stream")

    async def history(self, request: Request) -> Response:
        """Return the last readings, for graphs that do not begin empty."""
        return JSONResponse(list(self._feed.history))

    def projects(self, request: Request) -> Any:
        """Return key, name and folder of each project, the first one first."""
        every = self._projects.all().items()
        return [{"key": key, "name": self._projects.name_of(key), "folder": str(store.project)} for key, store in every]

    def runs(self, request: Request) -> Any:
        """Return a page of the list: ``?find=…&status=…&project=…&sort=…&backwards=1&page=0``."""
        query = request.query_params
        texts = {name: query[name] for name in ("find", "status", "project", "sort") if name in query}
        return self._listing.page(**texts, backwards=query.get("backwards") == "1", page=_whole(request, "page") or 0)

    def run(self, request: Request) -> Any:
        """Return a run: its receipt (provisional while it goes on) with plots, and the last numbers."""
        key, run = self._projects.find(request.path_params["id"])
        receipt = self._receipt_of(run)
        now = look(run, receipt.header.gpus[0].name if receipt.header.gpus else "")
        line = self._listing.line(key, run)
        return {**run_view(run, receipt, now), "project": line["project"], "ago": line["ago"]}

    def log(self, request: Request) -> Any:
        """Return a piece of a log: ``?stream=stdout&start=…`` or ``&end=…``."""
        _, run = self._projects.find(request.path_params["id"])
        stream: Literal["stdout", "stderr"] = "stderr" if request.query_params.get("stream") == "stderr" else "stdout"
        return read_log(run, stream, _whole(request, "start"), _whole(request, "end"))

    def compare(self, request: Request) -> Any:
        """Return runs side by side, the others against the first: ``?run=…&run=…``."""
        runs = [self._projects.find(reference)[1] for reference in request.query_params.getlist("run")]
        if not runs:
            raise ValueError("run is missing")
        return to_json(compare(*(self._receipt_of(run) for run in runs)))

    async def receipt(self, request: Request) -> Response:
        """Return the receipt's own page, or why it cannot be shown; ``?embedded=1``: without what a run's page has."""

        def render() -> str:
            _, run = self._projects.find(request.path_params["id"])
            return pages.render(self._receipt_of(run), embedded=request.query_params.get("embedded") == "1")

        try:
            page = await run_in_threadpool(render)
        except SeatrialError as error:
            return PlainTextResponse(error.message + "\n", 404)
        except Exception as error:  # noqa: BLE001  a run's files may hold anything
            return PlainTextResponse(f"This page cannot be shown: {type(error).__name__}\n", 500)
        return Response(page, media_type="text/html", headers={"content-security-policy": _RECEIPT_POLICY})

    def _receipt_of(self, run: Run) -> Receipt:
        return scrubbed(self._receipts.of(run), self._names)

    def _answering(self, endpoint: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Answer in a thread of its own; an error becomes a sentence."""

        def scrubbed(request: Request) -> Any:
            return visible_in(self._names.scrub(endpoint(request), keep=FIXED))

        async def answer(request: Request) -> Response:
            try:
                return JSONResponse(await run_in_threadpool(scrubbed, request))
            except RunNotFoundError as error:
                return JSONResponse({"error": error.message}, 404)
            except SeatrialError as error:
                return JSONResponse({"error": self._names.text(error.message)}, 409)
            except ValueError as error:
                return JSONResponse({"error": str(error)}, 400)
            except Exception as error:  # noqa: BLE001  a run's files may hold anything; the page and its other runs go on
                message = f"This cannot be shown: {type(error).__name__}: {error}"
                return JSONResponse({"error": self._names.text(message)}, 500)

        return answer


def _whole(request: Request, name: str) -> int | None:
    if (text := request.query_params.get(name)) is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise ValueError(f"{name} must be a whole number")
    return int(text)


# ------------------------------------------------------------------------------------------------------ the feed

#: Readings that a page gets at once when it opens: ten minutes at one a second.
HISTORY = 600
#: Readings of a GPU that the graphs need; of the others only the latest is shown.
_GRAPHED = ("index", "mig", "name", "uuid", "utilization_pct", "sm_activity_pct", "tensor_activity_pct",
            "dram_activity_pct", "memory_used_bytes", "memory_total_bytes", "temperature_c", "power_w")  # fmt: skip
#: Readings that a page which was busy gets all at once when it is ready again; older ones are lost to it.
CATCH_UP = 60
#: A comment line keeps proxies from closing a stream in which nothing happens.
_KEEP_ALIVE_S = 15.0


class Feed:
    """Readings for server-sent events: one thread calls ``read`` for all pages, and encodes each reading once.

    ``on_reading`` gets each and its CPU time, or None if it failed; ``tend`` is called after it, for slow housekeeping.
    ``history``: the last readings, as much of them as is graphed.
    """

    def __init__(
        self,
        read: Read,
        *,
        interval_s: float = 1.0,
        on_reading: Callable[[dict[str, Any] | None, float], None] = lambda reading, cpu_s: None,
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        self._read, self._interval_s, self._on_reading, self._tend = read, interval_s, on_reading, tend
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY)
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=CATCH_UP)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: asyncio.Event | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="readings", daemon=True)

    def start(self) -> None:
        """Begin to read. Call from the server's event loop."""
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._thread.start()

    def stop(self) -> None:
        """End the readings and every open stream. Call from the server's event loop."""
        self._done.set()
        if self._changed is not None:
            self._wake()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield server-sent events, one a reading, beginning with the newest."""
        assert self._changed is not None
        seen = self._recent[-1][0] - 1 if self._recent else 0
        while not self._done.is_set():
            for number, event in list(self._recent):
                if number > seen:
                    seen = number
                    yield event
            if self._recent and self._recent[-1][0] > seen:
                continue
            try:
                await asyncio.wait_for(self._changed.wait(), _KEEP_ALIVE_S)
            except asyncio.TimeoutError:
                yield b": still here\n\n"

    def _read_on(self) -> None:
        due_s, number = time.monotonic(), 0
        while not self._done.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + self._interval_s, time.monotonic())
            reading = self._reading()
            graphed = [{key: gpu.get(key) for key in _GRAPHED} for gpu in reading["gpus"]]
            self.history.append({"t": reading["t"], "gpus": graphed, "cpu_cores": reading["machine"]["cpu_cores"]})
            number += 1
            event = b"data: " + json.dumps(reading, separators=(",", ":")).encode() + b"\n\n"
            self._recent.append((number, event))
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the server has ended meanwhile
                return
            with contextlib.suppress(Exception):  # one broken run must not end the readings of all
                self._tend()

    def _reading(self) -> dict[str, Any]:
        """Read once; a page shows an error with no values in place of the last ones."""
        begun_s = time.thread_time()
        try:
            reading = self._read()
        except Exception as error:  # noqa: BLE001  this thread lives as long as the server
            self._on_reading(None, 0.0)
            return unread(f"The reading failed: {type(error).__name__}: {error}")
        self._on_reading(reading, time.thread_time() - begun_s)
        return reading

    def _wake(self) -> None:
        """Wake every stream; later ones wait for the next reading."""
        assert self._changed is not None
        self._changed.set()
        self._changed = asyncio.Event()
