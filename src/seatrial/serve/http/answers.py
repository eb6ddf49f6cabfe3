"""Answers as ASGI messages: JSON, and errors as one sentence."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]

_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")


def encode(value: Any) -> bytes:
    """JSON. Raises ValueError for NaN."""
    return _ENCODE(value).encode()


def json_headers(body: bytes, more: Headers) -> Headers:
    """Of an answer whose body is JSON already."""
    return [_JSON, (b"content-length", b"%d" % len(body)), *more]


def error(sentence: str) -> bytes:
    """The body of every error."""
    return encode({"error": sentence})
