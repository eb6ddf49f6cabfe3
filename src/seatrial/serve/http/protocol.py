"""Read requests and form answers: ``POST /predict``, and the Open Inference Protocol, version 2, with tensors as JSON.

``POST /predict`` takes JSON, an image file (as the body, or in a form), or plain text.
Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
The first dimension of every tensor is the batch. A model that takes text takes BYTES: strings.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from seatrial.serve.errors import BadInputError, HeavyError, MediaTypeError
from seatrial.serve.http import bodies
from seatrial.serve.readers.others import checked_array
from seatrial.serve.served_model import Answer, Description, Reader, Row
from seatrial.train.saving.model_card import DATATYPES, TensorSpec

#: Media types of a body that is, or may be, JSON.
JSON_TYPES = frozenset((b"application/json", b"", b"application/x-www-form-urlencoded"))
#: Kind of a type → kinds of JSON's numbers that it takes: floats take integers too.
_TAKES = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}


class Predict(NamedTuple):
    """A request to ``POST /predict``: rows, and whether the client sent a list of inputs."""

    rows: list[Row]
    many: bool

    def answer(self, reader: Reader, answers: list[Answer], name: str) -> dict[str, Any]:
        """Return the body of the answer."""
        if not self.many:
            return reader.answer(answers[0])
        return {"predictions": [reader.answer(answer) for answer in answers]}


class Infer(NamedTuple):
    """A request of the protocol: rows, the client's name for them, and the outputs that it wants (None: all)."""

    rows: list[Row]
    id: str | None
    outputs: list[str] | None

    def answer(self, reader: Reader, answers: list[Answer], name: str) -> dict[str, Any]:
        """Return the protocol's $inference_response."""
        outputs = []
        for index, spec in enumerate(reader.description.outputs):
            if self.outputs is not None and spec.name not in self.outputs:
                continue
            values = np.stack([answer[index] for answer in answers])
            shape, data = list(values.shape), values.ravel().tolist()
            outputs.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data})
        own = {} if self.id is None else {"id": self.id}
        return {"model_name": name, **own, "outputs": outputs}


Request = Predict | Infer


def read(reader: Reader, as_infer: bool, content_type: bytes, body: bytes, *, inline: bool = False) -> Request:
    """Read a request's rows. Raises BadInputError; with ``inline`` HeavyError if a file must be decoded."""
    return _read_infer(reader, body) if as_infer else _read_predict(reader, content_type, body, inline)


def media_type(content_type: bytes) -> bytes:
    """Return the type without parameters, in small letters."""
    return content_type.partition(b";")[0].strip().lower()


def metadata(description: Description, name: str) -> dict[str, Any]:
    """Return the protocol's $metadata_model_response."""

    def tensors(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [{"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]} for spec in specs]

    inputs = tensors(description.inputs)
    if description.kind == "text":
        inputs = [{"name": description.inputs[0].name, "datatype": "BYTES", "shape": [-1]}]
    return {"name": name, "platform": "seatrial", "inputs": inputs, "outputs": tensors(description.outputs)}


def _read_predict(reader: Reader, content_type: bytes, body: bytes, inline: bool) -> Predict:
    kind = media_type(content_type)
    form = kind == b"application/x-www-form-urlencoded"  # curl -d sends every body with this type
    if kind in (b"application/json", b"") or (form and body.lstrip()[:1] in (b"{", b"[")):
        if not body:
            raise BadInputError("The body is empty.")
        parsed = bodies.parse_json(body)
        if inline and reader.description.kind == "image" and _holds_texts(parsed):
            raise HeavyError("The body holds files.")
        return Predict(*reader.rows(parsed))
    if form:
        raise MediaTypeError("The content type is a form's: send JSON with the header content-type: application/json.")
    if kind == b"multipart/form-data":
        body, kind = bodies.first_file(body, content_type), b""
    if not body:
        raise BadInputError("The file is empty.")
    return Predict([reader.row_of_file(body, kind.decode("latin-1"))], many=False)


def _holds_texts(parsed: Any) -> bool:
    """Return True if an input is a text: for a model of images a file in base64."""
    values = parsed.values() if isinstance(parsed, dict) else [parsed]
    return any(isinstance(each, str) for value in values for each in (value if isinstance(value, list) else [value]))


def _read_infer(reader: Reader, body: bytes) -> Infer:
    parsed = bodies.parse_json(body)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("inputs"), list):
        raise BadInputError('The body has to be an object with "inputs", a list of tensors.')
    description = reader.description
    id = parsed.get("id")
    if id is not None and not isinstance(id, str):
        raise BadInputError('"id" has to be a string.')
    outputs = _wanted(description, parsed.get("outputs"))
    given = _by_name(description, parsed["inputs"])
    if description.kind == "text":
        return Infer(reader.rows({"inputs": _texts(next(iter(given.values())))})[0], id, outputs)
    columns = [_tensor(spec, given[spec.name]) for spec in description.inputs]
    if len({len(column) for column in columns}) > 1:
        raise BadInputError("The inputs have batches of different sizes: the first dimension is the batch.")
    return Infer(list(zip(*columns, strict=True)), id, outputs)


def _wanted(description: Description, given: Any) -> list[str] | None:
    if not given:
        return None
    known = [spec.name for spec in description.outputs]
    if not isinstance(given, list) or not all(isinstance(each, dict) and each.get("name") in known for each in given):
        raise BadInputError(f'"outputs" has to be a list of objects with a "name" of: {", ".join(known)}.')
    return [each["name"] for each in given]


def _by_name(description: Description, tensors: list[Any]) -> dict[str, dict[str, Any]]:
    specs = description.inputs[:1] if description.kind == "text" else description.inputs
    names = [spec.name for spec in specs]
    given = {each["name"]: each for each in tensors if isinstance(each, dict) and isinstance(each.get("name"), str)}
    if len(given) != len(tensors) or set(given) != set(names):
        raise BadInputError(f"The model takes these inputs, each once: {', '.join(names)}.")
    return given


def _texts(tensor: dict[str, Any]) -> list[str]:
    data, name = tensor.get("data"), tensor["name"]
    if tensor.get("datatype") != "BYTES":
        raise BadInputError(f'The input {name} is text: its "datatype" has to be BYTES.')
    shape = _shape(tensor)
    if not isinstance(data, list) or len(data) != math.prod(shape) or not all(isinstance(text, str) for text in data):
        raise BadInputError(f"The input {name} has to have as many strings in its data as its shape requires.")
    return data


def _tensor(spec: TensorSpec, tensor: dict[str, Any]) -> list[np.ndarray]:
    """Return the batch as one array for each row."""
    name = spec.name
    if tensor.get("datatype") != spec.datatype:
        raise BadInputError(f'The input {name} has to have the "datatype" {spec.datatype}.')
    shape, dtype = _shape(tensor), DATATYPES.get(spec.datatype)
    if dtype is None or dtype is np.float16:
        raise BadInputError(f"The input {name} is of type {spec.datatype}, which cannot be sent as JSON.")
    if not spec.fits(shape[1:]):
        raise BadInputError(f"The input {name} has shape {shape} and the model takes {[-1, *spec.shape]}.")
    try:
        plain = np.array(tensor.get("data"))
    except (ValueError, OverflowError) as problem:
        raise BadInputError(f"The data of the input {name} is not an array of numbers.") from problem
    if plain.dtype.kind not in _TAKES[np.dtype(dtype).kind]:
        raise BadInputError(f"The data of the input {name} is not all {spec.datatype}.")
    if plain.size != math.prod(shape):
        raise BadInputError(f"The data of the input {name} has {plain.size} numbers and its shape {math.prod(shape)}.")
    if (array := checked_array(plain, np.dtype(dtype))) is None:
        raise BadInputError(f"The data of the input {name} has a number outside of {spec.datatype}.")
    return list(array.reshape(shape))


def _shape(tensor: dict[str, Any]) -> list[int]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise BadInputError(f'The input {tensor["name"]} has no "shape": a list of whole numbers.')
    return shape
