"""The Open Inference Protocol, version 2: tensors as JSON.

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
The first dimension of every tensor is the batch. A model that takes text takes BYTES: strings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from seatrial.serve.errors import BadInputError
from seatrial.serve.http import bodies
from seatrial.serve.served_model import Answer, Description, Reader, Row, TensorSpec

#: The protocol's name of a type → numpy's. FP16 has no form in JSON; BYTES are strings.
DATATYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """Rows, the client's name for them, and the outputs that it wants (None: all)."""

    rows: list[Row]
    id: str | None
    outputs: list[str] | None

    def answer(self, reader: Reader, answers: list[Answer]) -> dict[str, Any]:
        """The protocol's $inference_response; the caller adds the model's name."""
        description = reader.description
        outputs = []
        for index, spec in enumerate(description.outputs):
            if self.outputs is not None and spec.name not in self.outputs:
                continue
            values = np.stack([answer[index] for answer in answers])
            shape, data = list(values.shape), values.ravel().tolist()
            outputs.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data})
        return {"outputs": outputs} if self.id is None else {"id": self.id, "outputs": outputs}


def read(reader: Reader, body: bytes) -> Request:
    """The request's rows. Raises BadInputError."""
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
        return Request(reader.rows({"inputs": _texts(next(iter(given.values())))}), id, outputs)
    columns = [_tensor(spec, given[spec.name]) for spec in description.inputs]
    if len({len(column) for column in columns}) > 1:
        raise BadInputError("The inputs have batches of different sizes: the first dimension is the batch.")
    return Request(list(zip(*columns, strict=True)), id, outputs)


def metadata(description: Description, name: str) -> dict[str, Any]:
    """The protocol's $metadata_model_response."""

    def tensors(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [{"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]} for spec in specs]

    inputs = tensors(description.inputs)
    if description.kind == "text":
        inputs = [{"name": description.inputs[0].name, "datatype": "BYTES", "shape": [-1]}]
    return {
        "name": name,
        "platform": "seatrial",
        "inputs": inputs,
        "outputs": tensors(description.outputs),
    }


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
        raise BadInputError(f"The input {name} has to have as many strings in its data as its shape says.")
    return data


def _tensor(spec: TensorSpec, tensor: dict[str, Any]) -> list[np.ndarray]:
    """The batch as one array for each row."""
    name = spec.name
    if tensor.get("datatype") != spec.datatype:
        raise BadInputError(f'The input {name} has to have the "datatype" {spec.datatype}.')
    shape, dtype = _shape(tensor), DATATYPES.get(spec.datatype)
    if dtype is None:
        raise BadInputError(f"The input {name} is of type {spec.datatype}, which cannot be sent as JSON.")
    fits = len(shape) == len(spec.shape) + 1 and all(
        want in (-1, have) for want, have in zip(spec.shape, shape[1:], strict=True)
    )
    if not fits:
        raise BadInputError(f"The input {name} has shape {shape} and the model takes {[-1, *spec.shape]}.")
    try:
        plain = np.array(tensor.get("data"))
    except (ValueError, OverflowError) as problem:
        raise BadInputError(f"The data of the input {name} is no array of numbers.") from problem
    if plain.dtype.kind not in _TAKES[np.dtype(dtype).kind]:
        raise BadInputError(f"The data of the input {name} is not all {spec.datatype}.")
    if plain.size != math.prod(shape):
        raise BadInputError(f"The data of the input {name} has {plain.size} numbers and its shape {math.prod(shape)}.")
    with np.errstate(over="ignore"):
        array = plain.astype(dtype)
    exact = np.isfinite(array).all() if array.dtype.kind == "f" else (array == plain).all()
    if not exact:
        raise BadInputError(f"The data of the input {name} has a number outside of {spec.datatype}.")
    return list(array.reshape(shape))


#: Kind of a type → kinds of what JSON becomes that it takes: floats take integers too.
_TAKES = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}


def _shape(tensor: dict[str, Any]) -> list[int]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise BadInputError(f'The input {tensor["name"]} has no "shape": a list of whole numbers.')
    return shape
