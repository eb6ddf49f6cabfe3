"""Read bodies of requests within a limit, JSON without NaN and files of forms; write answers as JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from seatrial.serve.errors import BadInputError
from seatrial.serve.model_link import Refusal

try:  # 784 numbers in 13 µs and not 63, fractions in 30 and not 306
    from orjson import loads as _QUICK
except ImportError:  # in an image of the user's own
    _QUICK = None  # type: ignore[assignment]
if TYPE_CHECKING:
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import File, FormParser, parse_options_header
else:
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import FormParser, parse_options_header
    except ImportError:  # its name before version 0.0.13
        from multipart.exceptions import FormParserError
        from multipart.multipart import FormParser, parse_options_header

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

#: Fields of a form that are read; the first with a file name is the file, or else the first.
_MOST_FIELDS = 16


class ClientLeftError(Exception):
    """The client has closed the connection."""


async def read(scope: Scope, receive: Receive, max_bytes: int) -> bytes | Refusal:
    """Read the whole body. Raises ClientLeftError."""
    refusal = Refusal(413, f"The body is larger than {max_bytes} bytes.")
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            return Refusal(415, "The body is compressed: send it as it is, without content-encoding.")
        if name == b"content-length" and (len(value) > 18 or int(value) > max_bytes):  # digits: the parser accepted it
            return refusal
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message["body"])
        size, more = size + len(message["body"]), message["more_body"]
        if size > max_bytes:
            return refusal
    return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_json(body: bytes) -> Any:
    """Parse JSON. Raises BadInputError: not JSON, or NaN or an infinity, which JSON does not have."""
    if _QUICK is not None:
        try:
            return _QUICK(body)
        except ValueError:  # the standard library explains it better, and reads integers of any length
            pass
    try:
        return _DECODE(body.decode())
    except BadInputError:
        raise
    except RecursionError as problem:
        raise BadInputError("The JSON is nested too deeply.") from problem
    except ValueError as problem:
        raise BadInputError("The body is not JSON.") from problem


def encode(value: Any) -> bytes:
    """Return JSON. Raises ValueError for NaN."""
    return _ENCODE(value).encode()


def error(sentence: str) -> bytes:
    """Return the body of an error."""
    return encode({"error": sentence})


def first_file(body: bytes, content_type: bytes) -> bytes:
    """Return the bytes of a form's file, as ``curl -F file=@x.png`` sends it. Raises BadInputError."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary or len(boundary) > 200:
        raise BadInputError("The form has no boundary in its content type.")
    fields: list[Any] = []
    files: list[File] = []

    def add(part: Any, to: list[Any]) -> None:
        to.append(part)
        if len(fields) + len(files) > _MOST_FIELDS:
            raise FormParserError("too many fields")

    in_memory = {"MAX_MEMORY_FILE_SIZE": len(body)}
    take = partial(add, to=fields), partial(add, to=files)
    try:
        parser = FormParser("multipart/form-data", *take, boundary=boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except (FormParserError, UnicodeDecodeError, ValueError) as problem:
        raise BadInputError("The form cannot be read.") from problem
    if files:
        files[0].file_object.seek(0)
        return files[0].file_object.read()
    if not fields:
        raise BadInputError("The form has no file: send it as curl -F file=@NAME does.")
    return fields[0].value or b""


def _refuse_constant(name: str) -> NoReturn:
    raise BadInputError(f"{name} is not a number of JSON, and the model does not take it.")


_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_DECODE = json.JSONDecoder(parse_constant=_refuse_constant).decode
