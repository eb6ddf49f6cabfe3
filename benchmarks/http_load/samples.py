"""What to send: asked of the server, which says what its model takes."""

from __future__ import annotations

import http.client
import json
import mimetypes
import random
import re
from pathlib import Path
from typing import Any

from http_load.address import Address
from http_load.wire import request
from seatrial.errors import SeatrialError, UsageError

#: Different requests that are sent in turn, so that nothing is measured that remembers the last one.
SAMPLES = 64
#: A side of an input that has no fixed length.
SOME_LENGTH = 8
MESSAGE = (
    "ok lor see you at home then call me when free to win a prize now txt claim your cash urgent mobile number had "
    "been awarded today i will be late sorry what time do we meet tomorrow love great thanks for the reply stop week"
)


class NoServerError(SeatrialError):
    """Nothing answers there, or it is no server of a model."""


def samples(address: Address, token: str = "") -> list[bytes]:
    """Requests for ``POST /predict`` of the model served there. Raises NoServerError."""
    (spec, *others) = _inputs(address, token)
    drawn = random.Random(0)
    bodies = []
    for _ in range(SAMPLES):
        if spec["datatype"] == "BYTES":
            one: Any = _message(drawn)
        elif others:
            one = {each["name"]: _numbers(each, drawn) for each in (spec, *others)}
        else:
            one = _numbers(spec, drawn)
        bodies.append(json.dumps({"input": one}, separators=(",", ":")).encode())
    return [request(address, "POST", "/predict", body, token=token) for body in bodies]


def of_file(address: Address, path: Path, token: str = "") -> list[bytes]:
    """One request with this file as its body; its suffix says what it is. Raises UsageError."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", run="ls -l") from error
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return [request(address, "POST", "/predict", body, media_type, token)]


def _message(drawn: random.Random) -> str:
    """Of 20 words on average, as the messages of the SMS Spam Collection."""
    words = MESSAGE.split()
    return " ".join(drawn.choice(words) for _ in range(max(2, min(60, round(drawn.gammavariate(2.5, 8))))))


def _numbers(spec: dict[str, Any], drawn: random.Random) -> Any:
    whole = not spec["datatype"].startswith("FP")
    top = 255 if spec["datatype"] == "UINT8" else 1

    def nested(shape: list[int]) -> Any:
        if not shape:
            return drawn.randint(0, top) if whole else round(drawn.random(), 4)
        return [nested(shape[1:]) for _ in range(shape[0] if shape[0] > 0 else SOME_LENGTH)]

    return nested(spec["shape"][1:])  # the first side is the batch


def _inputs(address: Address, token: str) -> list[dict[str, Any]]:
    named = re.search(r'model="([^"]+)"', _get(address, "/metrics", token))
    if named is None:
        raise NoServerError(f"{address} serves no model of seatrial", run="seatrial serve digits")
    found = json.loads(_get(address, f"/v2/models/{named[1]}", token))
    inputs: list[dict[str, Any]] = found["inputs"]
    return inputs


def _get(address: Address, path: str, token: str) -> str:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=5)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        text = answer.read(1 << 20).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise NoServerError(f"nothing answers at {address}: {error}", run="seatrial serve digits") from error
    finally:
        connection.close()
    if answer.status in (401, 403):
        raise NoServerError(f"{address} wants a token", run="export SEATRIAL_SERVE_TOKEN=…")
    if answer.status != 200:
        raise NoServerError(f"{address}{path} answers {answer.status}", run="seatrial serve digits")
    return text
