"""Describe the server as OpenAPI 3.1, with the model's own tensors in it."""

from __future__ import annotations

from typing import Any

import seatrial
from seatrial.serve.http.protocol import metadata
from seatrial.serve.options import Options
from seatrial.serve.served_model import Description

Object = dict[str, Any]

_ERROR_TEXTS = {
    400: "The request cannot be read, or does not fit the model.",
    401: "The token is missing or wrong.",
    408: "The request did not come to its end in time.",
    413: "The body is too large, or has too many inputs.",
    415: "The body is of a kind that the model does not take, or compressed.",
    429: "Too many requests wait already; the header Retry-After gives the seconds to wait.",
    503: "The model is not ready, or no longer.",
    504: "No answer in time.",
}
_OIP = "Open Inference Protocol"
#: (path, operation, tag, summary, schema, statuses besides 200).
_GETS: tuple[tuple[str, str, str, str, str | None, tuple[int, ...]], ...] = (
    ("/v2", "server", _OIP, "The server's name and version.", "Server", ()),
    ("/v2/health/live", "live", "Health", "Whether the server answers at all.", "Live", ()),
    ("/v2/health/ready", "ready", "Health", "Whether the model answers.", "Ready", (503,)),
    ("/v2/models/{name}", "model", _OIP, "The model's inputs and outputs.", "Model", ()),
    ("/v2/models/{name}/ready", "modelReady", "Health", "Whether this model answers.", "ModelReady", (503,)),
    ("/openapi.json", "openapi", "Description", "This description.", None, ()),
)


def document(options: Options, description: Description | None) -> Object:
    """Return the description; before the model is loaded without its tensors."""
    name = options.name
    paths: Object = {"/predict": {"post": _predict(description)}}
    for path, operation, tag, summary, schema, more in _GETS:
        responses = {"200": _response("Yes." if tag == "Health" else summary, schema)}
        responses |= {str(status): _response("No.", schema) for status in more}
        got: Object = {"operationId": operation, "tags": [tag], "summary": summary, "responses": responses}
        open_to_all: Object = {"security": []} if path.startswith("/v2/health") else {}
        paths[path.format(name=name)] = {"get": {**got, **open_to_all}}
    paths[f"/v2/models/{name}/infer"] = {"post": _infer(description)}
    counts = {"description": "Counts for Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    paths["/metrics"] = {
        "get": {
            "operationId": "metrics",
            "tags": ["Metrics"],
            "summary": "Counts for Prometheus.",
            "responses": {"200": counts},
        }
    }
    made: Object = {
        "openapi": "3.1.0",
        "info": {
            "title": f"{name}, served by seatrial",
            "version": seatrial.__version__,
            "description": 'Every error is a JSON object with one sentence: {"error": "…"}.',
        },
        "paths": paths,
        "components": {"schemas": _schemas(), "responses": {"Error": _response("An error.", "Error")}},
    }
    if options.token is not None:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
    return made


def _predict(description: Description | None) -> Object:
    kind = description.kind if description else "tensors"
    example: Any = (
        {"text": "WINNER!! Call now to claim your prize"} if kind == "text" else {"input": _zeros(description)}
    )
    content: Object = {"application/json": {"schema": {"$ref": "#/components/schemas/Predict"}, "example": example}}
    if kind == "text":
        content["text/plain"] = {"schema": {"type": "string"}}
    if kind == "image":
        binary = {"type": "string", "format": "binary"}
        content |= {media_type: {"schema": binary} for media_type in ("image/png", "image/jpeg")}
        content["multipart/form-data"] = {"schema": {"type": "object", "properties": {"file": binary}}}
    return {
        "operationId": "predict",
        "tags": ["Predict"],
        "summary": "The model's answer to one input, or to several.",
        "requestBody": {"required": True, "content": content},
        "responses": {"200": _response("One answer, or a list of them.", "Prediction"), **_errors()},
    }


def _infer(description: Description | None) -> Object:
    content: Object = {"schema": {"$ref": "#/components/schemas/InferenceRequest"}}
    if description is not None:
        tensor = metadata(description, description.name)["inputs"][0]
        shape = [1, *(max(1, n) for n in tensor["shape"][1:])]
        data = ["WINNER!! Call now"] if tensor["datatype"] == "BYTES" else _zeros(description)
        content["example"] = {"inputs": [{**tensor, "shape": shape, "data": data}]}
    return {
        "operationId": "infer",
        "tags": [_OIP],
        "summary": "Tensors to tensors; the first dimension is the batch.",
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {"200": _response("The outputs.", "InferenceResponse"), **_errors()},
    }


def _zeros(description: Description | None) -> Any:
    made: Any = 0
    for length in reversed(description.inputs[0].shape if description and description.inputs else ()):
        made = [made] * min(max(length, 1), 64)
    return made


def _errors() -> Object:
    return {str(status): _response(text, "Error") for status, text in _ERROR_TEXTS.items()}


def _response(text: str, schema: str | None) -> Object:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"} if schema else {"type": "object"}}
    return {"description": text, "content": {"application/json": content}}


def _object(required: str, **properties: Any) -> Object:
    return {"type": "object", "required": required.split(), "properties": properties}


def _schemas() -> Object:
    string, flag, numbers = {"type": "string"}, {"type": "boolean"}, {"type": "array", "items": {"type": "integer"}}
    tensor = _object("name datatype shape", name=string, datatype=string, shape=numbers)
    filled = _object(
        "name datatype shape data", name=string, datatype=string, shape=numbers, data={"type": "array"}
    )  # fmt: skip
    tensors, specs = {"type": "array", "items": filled}, {"type": "array", "items": tensor}
    outputs = {"type": "array", "items": _object("name", name=string)}
    several = {"type": "array", "minItems": 1}
    return {
        "Error": _object("error", error=string),
        "Predict": {
            "oneOf": [_object("input", input={}), _object("inputs", inputs=several), _object("text", text=string)]
        },
        "Prediction": {"type": "object"},
        "Server": _object("name version extensions", name=string, version=string, extensions={"type": "array"}),
        "Live": _object("live", live=flag),
        "Ready": _object("live ready", live=flag, ready=flag),
        "ModelReady": _object("name ready", name=string, ready=flag),
        "Model": _object("name platform inputs outputs", name=string, platform=string, inputs=specs, outputs=specs),
        "InferenceRequest": _object("inputs", id=string, inputs=tensors, outputs=outputs),
        "InferenceResponse": _object("model_name outputs", model_name=string, id=string, outputs=tensors),
    }
