"""Everything but asking the model: metadata and health of the Open Inference Protocol, metrics, pages."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import seatrial
from seatrial.serve.gpu_reading import Gpus
from seatrial.serve.http import infer, metrics
from seatrial.serve.http.answers import encode
from seatrial.serve.http.answers import error as error_body
from seatrial.serve.http.openapi import document

if TYPE_CHECKING:
    from seatrial.serve.http.site import Site

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_SENTENCES = {404: "There is nothing at this address.", 405: "This address takes another method."}


def pages(site: Site) -> Starlette:
    """The application."""
    link, name, gpus = site.link, site.options.name, Gpus()

    def as_json(value: Any, status: int = 200) -> Response:
        headers = {"retry-after": "2"} if status == 503 else None
        return Response(encode(value), status, headers, "application/json")

    async def server(_: Request) -> Response:
        return as_json({"name": "seatrial", "version": seatrial.__version__, "extensions": []})

    async def live(_: Request) -> Response:
        return as_json({"live": True})

    async def ready(_: Request) -> Response:
        good = link.phase == "ready"
        return as_json({"live": True, "ready": good}, 200 if good else 503)

    async def model(request: Request) -> Response:
        _check(request, name)
        if link.reader is None:
            return as_json({"error": link.unready().sentence}, 503)
        return as_json(infer.metadata(link.reader.description, name))

    async def model_ready(request: Request) -> Response:
        _check(request, name)
        good = link.phase == "ready"
        return as_json({"name": name, "ready": good}, 200 if good else 503)

    async def numbers(_: Request) -> Response:
        text = metrics.render(name, site.counts.totals(), ready=link.phase == "ready", gpus=gpus.read())
        return Response(text, media_type=metrics.TYPE)

    async def about(_: Request) -> Response:
        """What the page needs to know: which inputs to offer."""
        if link.reader is None:
            return as_json({"error": link.unready().sentence}, 503)
        known = link.reader.description
        size = list(known.inputs[0].shape) if known.inputs else []
        return as_json({"name": name, "kind": known.kind, "labels": known.labels, "shape": size})

    async def describe(_: Request) -> Response:
        return as_json(document(site.options, link.reader.description if link.reader else None))

    routes = [
        Route("/v2", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route("/v2/models/{name}", model),
        Route("/v2/models/{name}/ready", model_ready),
        Route("/v2/models/{name}/infer", _only_here, methods=["POST"]),
        Route("/predict", _only_here, methods=["POST"]),
        Route("/metrics", numbers),
        Route("/openapi.json", describe),
        Route("/static/about.json", about),
        Route("/", _file("page.html")),
        Route("/docs", _file("docs.html")),
        *(Route(f"/static/{each}", _file(each)) for each in ("page.css", "page.js", "docs.js")),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _known, Exception: _unknown})


def _check(request: Request, name: str) -> None:
    if request.path_params["name"] != name:
        raise HTTPException(404, f"There is no such model here: the one that is served is {name}.")


async def _only_here(request: Request) -> Response:
    """POST comes here with a wrong model's name only; every other method is refused by the route."""
    raise HTTPException(404, "There is no such model here.")


def _file(name: str) -> Any:
    path = resources.files("seatrial.serve").joinpath("static") / name
    data, media_type = path.read_bytes(), _TYPES[Path(name).suffix]

    async def answer(_: Request) -> Response:
        return Response(data, media_type=media_type)

    return answer


async def _known(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    told = problem.detail if problem.detail.endswith(".") else _SENTENCES.get(problem.status_code, "It cannot be done.")
    headers = {key: value for key, value in (problem.headers or {}).items() if key.lower() == "allow"}
    return Response(error_body(told), problem.status_code, headers, "application/json")


async def _unknown(request: Request, problem: Exception) -> Response:
    return Response(error_body("The server failed on this request."), 500, None, "application/json")
