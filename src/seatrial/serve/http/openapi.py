"""The OpenAPI description of the server, with the model's own tensors in it."""

from __future__ import annotations

from typing import Any

import seatrial
from seatrial.serve.http import infer
from seatrial.serve.options import Options
from seatrial.serve.served_model import Description

Object = dict[str, Any]

_ERROR_TEXTS = {
    400: "The request cannot be read, or does not fit the model.",
    401: "The token is missing or wrong.",
    408: "The request did not come to its end in time.",
    413: "The body is too large, or has too many inputs.",
    415: "The body is of a kind that the model does not take, or compressed.",
    429: "Too many requests wait already; the header Retry-After says when to try again.",
    503: "The model is not ready, or no longer.",
    504: "No answer in time.",
}


def document(options: Options, description: Description | None) -> Object:
    """OpenAPI 3.1; before the model is loaded without its tensors."""
    name = options.name
    kind = description.kind if description else "tensors"
    paths = {
        "/predict": {"post": _predict(kind, description)},
        "/v2": {"get": _get("server", "The server's name and version.", "Server", "Open Inference Protocol")},
        "/v2/health/live": {"get": _get("live", "Whether the server answers at all.", "Live", "Health", token=False)},
        "/v2/health/ready": {"get": _get("ready", "Whether the model answers.", "Ready", "Health", 503, token=False)},
        f"/v2/models/{name}": {
            "get": _get("model", "The model's inputs and outputs.", "Model", "Open Inference Protocol")
        },
        f"/v2/models/{name}/ready": {
            "get": _get("modelReady", "Whether this model answers.", "ModelReady", "Health", 503)
        },
        f"/v2/models/{name}/infer": {"post": _infer(description)},
        "/metrics": {"get": _text("metrics", "Counts for Prometheus.", "text/plain")},
        "/openapi.json": {"get": _get("openapi", "This description.", None, "Description")},
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


def _predict(kind: str, description: Description | None) -> Object:
    example: Any = {"input": _zeros(description)}
    content: Object = {"application/json": {"schema": {"$ref": "#/components/schemas/Predict"}, "example": example}}
    if kind == "text":
        content["application/json"]["example"] = {"text": "WINNER!! Call now to claim your prize"}
        content["text/plain"] = {"schema": {"type": "string"}}
    if kind == "image":
        for media_type in ("image/png", "image/jpeg"):
            content[media_type] = {"schema": {"type": "string", "format": "binary"}}
        form = {"type": "object", "properties": {"file": {"type": "string", "format": "binary"}}}
        content["multipart/form-data"] = {"schema": form}
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
        tensor = infer.metadata(description, description.name)["inputs"][0]
        shape = [1, *(max(1, n) for n in tensor["shape"][1:])]
        data = ["WINNER!! Call now"] if tensor["datatype"] == "BYTES" else _zeros(description)
        content["example"] = {"inputs": [{**tensor, "shape": shape, "data": data}]}
    return {
        "operationId": "infer",
        "tags": ["Open Inference Protocol"],
        "summary": "Tensors to tensors; the first dimension is the batch.",
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {"200": _response("The outputs.", "InferenceResponse"), **_errors()},
    }


def _zeros(description: Description | None) -> Any:
    if description is None or not description.inputs:
        return 0
    made: Any = 0
    for length in reversed(description.inputs[0].shape):
        made = [made] * min(max(length, 1), 64)
    return made


def _get(operation: str, summary: str, schema: str | None, tag: str, *more: int, token: bool = True) -> Object:
    responses = {"200": _response("Yes." if tag == "Health" else summary, schema)}
    responses |= {str(status): _response("No.", schema) for status in more}
    made: Object = {"operationId": operation, "tags": [tag], "summary": summary, "responses": responses}
    return made if token else {**made, "security": []}


def _text(operation: str, summary: str, media_type: str) -> Object:
    response = {"description": summary, "content": {media_type: {"schema": {"type": "string"}}}}
    return {"operationId": operation, "tags": ["Metrics"], "summary": summary, "responses": {"200": response}}


def _errors() -> Object:
    return {str(status): _response(text, "Error") for status, text in _ERROR_TEXTS.items()}


def _response(text: str, schema: str | None) -> Object:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"} if schema else {"type": "object"}}
    return {"description": text, "content": {"application/json": content}}


def _object(required: list[str], **properties: Any) -> Object:
    return {"type": "object", "required": required, "properties": properties}


def _schemas() -> Object:
    string, flag, numbers = {"type": "string"}, {"type": "boolean"}, {"type": "array", "items": {"type": "integer"}}
    tensor = _object(["name", "datatype", "shape"], name=string, datatype=string, shape=numbers)
    filled = _object(
        ["name", "datatype", "shape", "data"], name=string, datatype=string, shape=numbers, data={"type": "array"}
    )
    tensors = {"type": "array", "items": filled}
    outputs = {"type": "array", "items": _object(["name"], name=string)}
    several = {"type": "array", "minItems": 1}
    return {
        "Error": _object(["error"], error=string),
        "Predict": {
            "oneOf": [_object(["input"], input={}), _object(["inputs"], inputs=several), _object(["text"], text=string)]
        },
        "Prediction": {"type": "object"},
        "Server": _object(["name", "version", "extensions"], name=string, version=string, extensions={"type": "array"}),
        "Live": _object(["live"], live=flag),
        "Ready": _object(["live", "ready"], live=flag, ready=flag),
        "ModelReady": _object(["name", "ready"], name=string, ready=flag),
        "Model": _object(
            ["name", "platform", "inputs", "outputs"],
            name=string, platform=string, inputs={"type": "array", "items": tensor},
            outputs={"type": "array", "items": tensor},
        ),
        "InferenceRequest": _object(["inputs"], id=string, inputs=tensors, outputs=outputs),
        "InferenceResponse": _object(["model_name", "outputs"], model_name=string, id=string, outputs=tensors),
    }  # fmt: skip
