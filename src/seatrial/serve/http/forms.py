"""A file out of a form, as ``curl -F file=@x.png`` sends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seatrial.serve.errors import BadInputError

if TYPE_CHECKING:
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartCallbacks, MultipartParser, parse_options_header
else:
    try:
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import MultipartParser, parse_options_header
    except ImportError:  # its name before version 0.0.13
        from multipart.exceptions import FormParserError
        from multipart.multipart import MultipartParser, parse_options_header

#: Fields of a form that are looked at; the first with a file name is the file, or else the first.
_MOST_FIELDS = 16


def first_file(body: bytes, content_type: bytes) -> tuple[bytes, bytes]:
    """(its bytes, its media type) of the form's file. Raises BadInputError."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary or len(boundary) > 200:
        raise BadInputError("The form has no boundary in its content type.")
    fields = _Fields()
    try:
        parser = MultipartParser(boundary, fields.callbacks())
        parser.write(body)
        parser.finalize()
    except (FormParserError, UnicodeDecodeError, ValueError) as problem:
        raise BadInputError("The form cannot be read.") from problem
    found = next((field for field in fields.done if b"filename" in field.disposition), None) or next(
        iter(fields.done), None
    )
    if found is None:
        raise BadInputError("There is no file in the form: send it as curl -F file=@NAME does.")
    return bytes(found.data), found.media_type


class _Field:
    def __init__(self) -> None:
        self.data = bytearray()
        self.headers: dict[bytes, bytes] = {}

    @property
    def disposition(self) -> dict[bytes, bytes]:
        return parse_options_header(self.headers.get(b"content-disposition", b""))[1]

    @property
    def media_type(self) -> bytes:
        return self.headers.get(b"content-type", b"text/plain").partition(b";")[0].strip().lower()


class _Fields:
    """The parser's callbacks."""

    def __init__(self) -> None:
        self.done: list[_Field] = []
        self._field = _Field()
        self._name, self._value = bytearray(), bytearray()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
        }

    def _begin(self) -> None:
        if len(self.done) >= _MOST_FIELDS:
            raise BadInputError(f"The form has more than {_MOST_FIELDS} fields.")
        self._field = _Field()

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._field.data += data[start:end]

    def _end(self) -> None:
        self.done.append(self._field)

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._field.headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()
