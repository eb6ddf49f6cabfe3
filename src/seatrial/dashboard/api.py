"""What the page asks for, as JSON; and the receipts' own pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from seatrial.dashboard.feed import Feed
from seatrial.errors import RunNotFoundError, SeatrialError
from seatrial.receipt.model import Receipt
from seatrial.receipt.nameless import FIXED, scrubbed
from seatrial.receipt.rendering import html
from seatrial.reports.compare import compare, to_json
from seatrial.reports.view import Receipts, read_log
from seatrial.runs.following.live import look
from seatrial.runs.store import Run, RunStore, run_name
from seatrial.system.names import Names

#: Runs on one page of the list.
PAGE = 50

#: A receipt's page is shown in a frame: it may load and run nothing, whatever a run has printed into it.
_RECEIPT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'self'"


class Api:
    """Endpoints over one project's runs and this machine's telemetry; a page may be shown, so it has no ``names``."""

    def __init__(self, store: RunStore, feed: Feed, names: Names) -> None:
        self._store, self._feed, self._names, self._receipts = store, feed, names, Receipts()

    def routes(self) -> list[Route]:
        return [
            Route("/api/events", self.events),
            Route("/api/history", self.history),
            Route("/api/runs", self._answering(self.runs)),
            Route("/api/runs/{id}", self._answering(self.run)),
            Route("/api/runs/{id}/log", self._answering(self.log)),
            Route("/api/compare", self._answering(self.compare)),
            Route("/receipts/{id}", self.receipt),
        ]

    async def events(self, request: Request) -> Response:
        """Server-sent events, one a reading."""
        return StreamingResponse(self._feed.events(), media_type="text/event-stream")

    async def history(self, request: Request) -> Response:
        """The last readings, for graphs that do not begin empty."""
        return JSONResponse(self._feed.history())

    def runs(self, request: Request) -> Any:
        """``?page=0&find=…``: one page of the list, newest first; ``find`` is looked for in ID, name and target."""
        page, find = _whole(request, "page") or 0, request.query_params.get("find", "").lower()
        lines = [_line(run) for run in reversed(self._store.all())] if find else None
        if lines is not None:
            lines = [line for line in lines if find in f"{line['id']} {line['name'] or ''} {line['target']}".lower()]
            shown, total = lines[page * PAGE : (page + 1) * PAGE], len(lines)
        else:
            every = self._store.all()[::-1]
            shown, total = [_line(run) for run in every[page * PAGE : (page + 1) * PAGE]], len(every)
        return {"runs": shown, "total": total, "page": page, "pages": max(1, -(-total // PAGE))}

    def run(self, request: Request) -> Any:
        """One run: its receipt (provisional while it goes on) with plots, and the last numbers."""
        run = self._find(request.path_params["id"])
        receipt = self._receipt_of(run)
        now = look(run, receipt.header.gpus[0].name if receipt.header.gpus else "")
        return {
            "id": run.id,
            "name": run_name(run),
            "ended": run.summary() is not None,
            "receipt": receipt.model_dump(mode="json"),
            "numbers": dict(now.numbers),
            "bound_by": now.diagnosis.words if now.diagnosis else None,
        }

    def log(self, request: Request) -> Any:
        """``?stream=stdout&start=…`` or ``&end=…``: a piece of a log."""
        run = self._find(request.path_params["id"])
        stream: Literal["stdout", "stderr"] = "stderr" if request.query_params.get("stream") == "stderr" else "stdout"
        piece = read_log(run, stream, _whole(request, "start"), _whole(request, "end"))
        return dataclasses.asdict(piece)

    def compare(self, request: Request) -> Any:
        """``?a=…&b=…``: two runs side by side."""
        a, b = (self._receipt_of(self._find(request.query_params.get(side, ""))) for side in "ab")
        return to_json(compare(a, b))

    async def receipt(self, request: Request) -> Response:
        """The receipt's own page."""
        try:
            page = await run_in_threadpool(lambda: html.render(self._receipt_of(self._find(request.path_params["id"]))))
        except SeatrialError as error:
            return PlainTextResponse(error.message + "\n", 404)
        except Exception as error:  # noqa: BLE001  as below
            return PlainTextResponse(f"This receipt cannot be shown: {type(error).__name__}\n", 500)
        return Response(page, media_type="text/html", headers={"content-security-policy": _RECEIPT_POLICY})

    def _receipt_of(self, run: Run) -> Receipt:
        return scrubbed(self._receipts.of(run), self._names)

    def _find(self, reference: str) -> Run:
        """By ID alone, and only among the store's own folders: no path can be made of it."""
        run = next((run for run in self._store.all() if run.id == reference), None)
        if run is None:
            raise RunNotFoundError("There is no such run")
        return run

    def _answering(self, endpoint: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """The endpoint in a thread of its own; what goes wrong is a sentence."""

        def scrubbed(request: Request) -> Any:
            return self._names.scrub(endpoint(request), keep=FIXED)

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


def _line(run: Run) -> dict[str, Any]:
    """A run in the list. One that cannot be read is a line as well, and hides no other."""
    try:
        return _line_of(run)
    except Exception as error:  # noqa: BLE001  a run's files may hold anything
        keys = ("name", "exit_code", "gpus", "seconds")
        outcome = f"cannot be read: {type(error).__name__}"
        return {"id": run.id, "ended": False, "target": "?", "backend": "?", "outcome": outcome, **dict.fromkeys(keys)}


def _line_of(run: Run) -> dict[str, Any]:
    """From summary.json or, while it goes on, from its plan."""
    summary = run.summary()
    if summary is not None:
        keys = ("target", "backend", "gpus", "exit_code", "outcome", "cause", "seconds", "headline", "level")
        return {"id": run.id, "name": run_name(run), "ended": True, **{key: summary.get(key) for key in keys}}
    line = {"id": run.id, "name": run_name(run), "ended": False, "exit_code": None, "outcome": "running"}
    try:
        plan = run.plan()
    except SeatrialError as error:
        return {**line, "target": "?", "backend": "?", "gpus": None, "outcome": error.message, "seconds": None}
    target = plan.job.target.value or plan.job.image.ready or ""
    return {**line, "target": target, "backend": plan.backend, "gpus": plan.gpus_asked, "seconds": None}
