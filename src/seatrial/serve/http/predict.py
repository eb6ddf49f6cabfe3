"""``POST /predict``: JSON, an image file (as the body, or in a form), or plain text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seatrial.serve.errors import BadInputError, HeavyError, MediaTypeError
from seatrial.serve.http import bodies
from seatrial.serve.http.forms import first_file
from seatrial.serve.served_model import Answer, Reader, Row

#: Media types of a body that is, or may be, JSON.
JSON_TYPES = frozenset((b"application/json", b"", b"application/x-www-form-urlencoded"))


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


def read(reader: Reader, content_type: bytes, body: bytes, *, inline: bool = False) -> Request:
    """The request's rows. Raises BadInputError; with ``inline`` HeavyError where a file must be decoded."""
    kind = media_type(content_type)
    if kind in (b"application/json", b""):
        if not body:
            raise BadInputError("The body is empty.")
        return _of_json(reader, body, inline)
    if kind == b"multipart/form-data":
        body, kind = first_file(body, content_type)
    elif kind == b"application/x-www-form-urlencoded":  # what curl -d says of everything
        if body.lstrip()[:1] in (b"{", b"["):
            return _of_json(reader, body, inline)
        raise MediaTypeError("The content type is a form's: send JSON with the header content-type: application/json.")
    if not body:
        raise BadInputError("The file is empty.")
    return Request([reader.row_of_file(body, kind.decode("latin-1"))], many=False)


def media_type(content_type: bytes) -> bytes:
    """Without parameters, in small letters."""
    return content_type.partition(b";")[0].strip().lower()


def _of_json(reader: Reader, body: bytes, inline: bool) -> Request:
    parsed = bodies.parse_json(body)
    if inline and reader.description.kind == "image" and _holds_texts(parsed):
        raise HeavyError("The body holds files.")
    return Request(reader.rows(parsed), reader.many(parsed))


def _holds_texts(parsed: Any) -> bool:
    """Whether an input is a text: for a model of images a file in base64."""
    values = parsed.values() if isinstance(parsed, dict) else [parsed]
    return any(isinstance(each, str) for value in values for each in (value if isinstance(value, list) else [value]))
