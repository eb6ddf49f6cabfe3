"""Describe the server as OpenAPI 3.1: static/openapi.json with the model's own tensors in it."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import seatrial
from seatrial.serve.http.protocol import metadata
from seatrial.serve.options import Options
from seatrial.serve.served_model import Description

Object = dict[str, Any]


def document(options: Options, description: Description | None) -> Object:
    """Return the description; before the model is loaded without its tensors."""
    text = resources.files("seatrial.serve").joinpath("static/openapi.json").read_text(encoding="utf-8")
    made: Object = json.loads(text)
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
