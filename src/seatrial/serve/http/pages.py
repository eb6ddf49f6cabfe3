"""Answer every request but those to the model: metadata and health of the Open Inference Protocol, metrics, pages."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import seatrial
from seatrial.serve.counters import PER_OCTAVE, Counters, CounterTotals, upper_s
from seatrial.serve.http.bodies import encode
from seatrial.serve.http.bodies import error as error_body
from seatrial.serve.http.protocol import metadata
from seatrial.serve.model_link import ModelLink
from seatrial.serve.options import Options
from seatrial.serve.served_model import Description

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_SENTENCES = {404: "There is nothing at this address.", 405: "This address takes another method."}

Answer = Callable[[Request], Awaitable[Response]]
#: Prometheus text. The counts are in common memory (counters.py), so that every front gives those of all;
#: prometheus-client would keep a second set of counts, and files for them, with several processes.
#: Format: https://prometheus.io/docs/instrumenting/exposition_formats/
_EXPOSITION = "text/plain; version=0.0.4"
#: Histogram lines: batches up to these sizes.
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Sample = tuple[str, dict[str, str], float]


def pages(options: Options, link: ModelLink, counters: Counters) -> Starlette:
    """Return the application."""
    name = options.name

    def json_route(path: str, make: Callable[[], tuple[Any, int]]) -> Route:
        async def answer(request: Request) -> Response:
            if request.path_params.get("name", name) != name:
                raise HTTPException(404, f"The server has no such model: it serves {name}.")
            value, status = make()
            headers = {"retry-after": "2"} if status == 503 else None
            return Response(encode(value), status, headers, "application/json")

        return Route(path, answer)

    def readiness(**more: Any) -> tuple[Any, int]:
        ready = link.phase == "ready"
        return {**more, "ready": ready}, 200 if ready else 503

    def of_model(describe: Callable[[Description], Any]) -> tuple[Any, int]:
        if link.reader is None:
            return {"error": link.unready().sentence}, 503
        return describe(link.reader.description), 200

    def about(known: Description) -> Any:
        """Return the data with which the page offers the right inputs."""
        shape = list(known.inputs[0].shape) if known.inputs else []
        return {"name": name, "kind": known.kind, "labels": known.labels, "shape": shape}

    async def numbers(_: Request) -> Response:
        return Response(exposition(name, counters.totals(), ready=link.phase == "ready"), media_type=_EXPOSITION)

    routes = [
        json_route("/v2", lambda: ({"name": "seatrial", "version": seatrial.__version__, "extensions": []}, 200)),
        json_route("/v2/health/live", lambda: ({"live": True}, 200)),
        json_route("/v2/health/ready", lambda: readiness(live=True)),
        json_route("/v2/models/{name}", lambda: of_model(lambda known: metadata(known, name))),
        json_route("/v2/models/{name}/ready", lambda: readiness(name=name)),
        Route("/v2/models/{name}/infer", _only_here, methods=["POST"]),
        Route("/predict", _only_here, methods=["POST"]),
        Route("/metrics", numbers),
        json_route("/openapi.json", lambda: (document(options, link.reader.description if link.reader else None), 200)),
        json_route("/static/about.json", lambda: of_model(about)),
        Route("/", _file("page.html")),
        *(Route(f"/static/{each}", _file(each)) for each in ("page.css", "page.js")),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _known, Exception: _unknown})


def document(options: Options, description: Description | None) -> dict[str, Any]:
    """Describe the server as OpenAPI 3.1: static/openapi.json with the model's tensors, once it is loaded."""
    text = resources.files("seatrial.serve").joinpath("static/openapi.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    made["info"] |= {"title": f"{options.name}, served by seatrial", "version": seatrial.__version__}
    paths = made["paths"] = {path.replace("{name}", options.name): each for path, each in made["paths"].items()}
    kind = description.kind if description else "tensors"
    content = paths["/predict"]["post"]["requestBody"]["content"]
    text_example = {"text": "WINNER!! Call now to claim your prize"}
    content["application/json"]["example"] = text_example if kind == "text" else {"input": _zeros(description)}
    if kind == "text":
        content["text/plain"] = {"schema": {"type": "string"}}
    if kind == "image":
        binary = {"type": "string", "format": "binary"}
        content |= {media_type: {"schema": binary} for media_type in ("image/png", "image/jpeg")}
        content["multipart/form-data"] = {"schema": {"type": "object", "properties": {"file": binary}}}
    if description is not None:
        tensor = metadata(description, description.name)["inputs"][0]
        shape = [1, *(max(1, n) for n in tensor["shape"][1:])]
        data = ["WINNER!! Call now"] if tensor["datatype"] == "BYTES" else _zeros(description)
        body = paths[f"/v2/models/{options.name}/infer"]["post"]["requestBody"]["content"]["application/json"]
        body["example"] = {"inputs": [{**tensor, "shape": shape, "data": data}]}
    if options.token is not None:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _zeros(description: Description | None) -> Any:
    made: Any = 0
    for length in reversed(description.inputs[0].shape if description and description.inputs else ()):
        made = [made] * min(max(length, 1), 64)
    return made


async def _only_here(request: Request) -> Response:
    """Refuse a POST with a wrong model's name; the route refuses every other method."""
    raise HTTPException(404, "The server has no such model.")


def _file(name: str) -> Answer:
    path = resources.files("seatrial.serve").joinpath("static") / name
    data, media_type = path.read_bytes(), _TYPES[Path(name).suffix]

    async def answer(_: Request) -> Response:
        return Response(data, media_type=media_type)

    return answer


async def _known(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    own = problem.detail if problem.detail.endswith(".") else None
    sentence = own or _SENTENCES.get(problem.status_code, "It cannot be done.")
    headers = {key: value for key, value in (problem.headers or {}).items() if key.lower() == "allow"}
    return Response(error_body(sentence), problem.status_code, headers, "application/json")


async def _unknown(request: Request, problem: Exception) -> Response:
    return Response(error_body("The server failed on this request."), 500, None, "application/json")


def exposition(name: str, totals: CounterTotals, *, ready: bool) -> str:
    """Return the counts of all processes for ``/metrics``."""
    requests = [
        ("", {"kind": kind, "code": str(status or "other")}, count) for (kind, status), count in totals.requests.items()
    ]
    families: tuple[tuple[str, str, str, Iterable[Sample]], ...] = (
        ("requests_total", "counter", "Requests answered.", requests),
        ("latency_seconds", "histogram", "From a request's head to its answer; of those that reached the model.",
         _latency(totals)),
        ("batch_size", "histogram", "Rows of a batch.", _batches(totals)),
        ("compute_seconds_total", "counter", "Time that the model computed.", [("", {}, totals.compute_s)]),
        ("queue_rows", "gauge", "Rows that wait or are computed.", [("", {}, totals.in_flight)]),
        ("queue_rows_peak", "gauge", "The most rows that waited at a time.", [("", {}, totals.queue_peak)]),
        ("abandoned_rows_total", "counter", "Rows not computed: nobody waited for them.", [("", {}, totals.abandoned)]),
        ("connections", "gauge", "Open connections.", [("", {}, totals.connections)]),
        ("ready", "gauge", "1 when requests are answered.", [("", {}, float(ready))]),
    )  # fmt: skip
    lines: list[str] = []
    for metric, kind, help, samples in families:
        if not (found := list(samples)):
            continue
        full = f"seatrial_serve_{metric}"
        lines.append(f"# HELP {full} {help}\n# TYPE {full} {kind}")
        lines += [f"{full}{suffix}{_labels({'model': name, **more})} {_number(value)}" for suffix, more, value in found]
    return "\n".join(lines) + "\n"


def _latency(totals: CounterTotals) -> Iterator[Sample]:
    """Yield a line for each octave: bounds of the fine buckets, so that no request is in a wrong one."""
    below = 0
    for bucket, count in enumerate(totals.latencies):
        below += count
        if bucket % PER_OCTAVE == 0 or upper_s(bucket) == math.inf:
            bound = "+Inf" if upper_s(bucket) == math.inf else f"{upper_s(bucket):.10g}"
            yield "_bucket", {"le": bound}, below
    yield "_sum", {}, totals.latency_sum_s
    yield "_count", {}, below


def _batches(totals: CounterTotals) -> Iterator[Sample]:
    for size in _SIZES:
        yield "_bucket", {"le": str(size)}, sum(count for each, count in totals.batches.items() if each <= size)
    count = sum(totals.batches.values())
    yield "_bucket", {"le": "+Inf"}, count
    yield "_sum", {}, sum(size * times for size, times in totals.batches.items())
    yield "_count", {}, count


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"


def _labels(labels: dict[str, str]) -> str:
    escaped = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    return "{" + ",".join(f'{key}="{value.translate(escaped)}"' for key, value in labels.items()) + "}"
