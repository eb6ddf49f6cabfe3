"""``POST /predict``: JSON, an image file (as the body, or in a form), or plain text."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from seatrial.serve.errors import BadInputError, MediaTypeError
from seatrial.serve.http import bodies
from seatrial.serve.http.answers import Scope
from seatrial.serve.http.forms import first_file
from seatrial.serve.served_model import Answer, Reader, Row

#: A larger file is read in a thread: others are answered meanwhile.
_SMALL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Request:
    """Rows, and whether the client sent a list of inputs or one."""

    rows: list[Row]
    many: bool

    def answer(self, reader: Reader, answers: list[Answer]) -> dict[str, Any]:
        """As the client gets it."""
        if not self.many:
            return reader.answer(answers[0])
        return {"predictions": [reader.answer(answer) for answer in answers]}


async def read(reader: Reader, scope: Scope, body: bytes) -> Request:
    """The request's rows. Raises BadInputError."""
    given = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            given = value
            break
    media_type = given.partition(b";")[0].strip().lower()
    if media_type in (b"application/json", b""):
        if not body:
            raise BadInputError("The body is empty.")
        return _of_json(reader, body)
    if media_type == b"multipart/form-data":
        body, media_type = first_file(body, given)
    elif media_type == b"application/x-www-form-urlencoded":  # what curl -d says of everything
        if body.lstrip()[:1] in (b"{", b"["):
            return _of_json(reader, body)
        raise MediaTypeError("The content type is a form's: send JSON with the header content-type: application/json.")
    if not body:
        raise BadInputError("The file is empty.")
    kind = media_type.decode("latin-1")
    if len(body) <= _SMALL_BYTES:
        return Request([reader.row_of_file(body, kind)], many=False)
    row = await asyncio.get_running_loop().run_in_executor(None, reader.row_of_file, body, kind)
    return Request([row], many=False)


def _of_json(reader: Reader, body: bytes) -> Request:
    parsed = bodies.parse_json(body)
    return Request(reader.rows(parsed), reader.many(parsed))
