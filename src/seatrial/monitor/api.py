"""The dashboard's API: JSON for the page, and the receipts' own pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from seatrial.errors import RunNotFoundError, SeatrialError
from seatrial.monitor.compare import compare, to_json
from seatrial.monitor.feed import Feed
from seatrial.monitor.run_list import Listing, Projects, Wanted
from seatrial.monitor.run_view import Receipts, read_log, run_view
from seatrial.receipt.model import Receipt
from seatrial.receipt.render import html
from seatrial.receipt.store import FIXED, scrubbed
from seatrial.runs.following.live import look
from seatrial.runs.run import Run
from seatrial.system.names import Names
from seatrial.system.text import visible_in

#: A receipt's page is shown in a frame: it may load and run nothing. It has our
#: origin, so that the page around it can measure how tall it is.
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
        return JSONResponse(self._feed.history())

    def projects(self, request: Request) -> Any:
        """Return key, name and folder of each project, the first one first."""
        every = self._projects.all().items()
        return [{"key": key, "name": self._projects.name_of(key), "folder": str(store.project)} for key, store in every]

    def runs(self, request: Request) -> Any:
        """Return a page of the list: ``?find=…&status=…&project=…&sort=…&backwards=1&page=0``."""
        query = request.query_params
        return self._listing.page(
            Wanted(
                find=query.get("find", ""),
                status=query.get("status", ""),
                project=query.get("project", ""),
                sort=query.get("sort", "started"),
                backwards=query.get("backwards", "") == "1",
                page=_whole(request, "page") or 0,
            )
        )

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
            return html.render(self._receipt_of(run), embedded=request.query_params.get("embedded") == "1")

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
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise ValueError(f"{name} must be a whole number")
    return int(text)
