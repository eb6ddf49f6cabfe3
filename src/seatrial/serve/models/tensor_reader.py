"""Arrays of numbers in requests to rows, for models of which nothing more is known. numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seatrial.serve.errors import BadInputError, MediaTypeError
from seatrial.serve.models.bodies import depth, inputs_of
from seatrial.serve.models.classes import class_answer
from seatrial.serve.models.datatypes import NUMPY
from seatrial.serve.served_model import Answer, Description, Row, TensorSpec


@dataclass
class TensorReader:
    """A row for each input: nested lists, or for a model of several inputs an object of nested lists by name."""

    description: Description

    def rows(self, body: Any) -> list[Row]:
        """Of ``{"input": one}``, ``{"inputs": [several]}``, a bare list, or an object of the model's own names."""
        return [self._row(row) for row in self._inputs(body)[0]]

    def many(self, body: Any) -> bool:
        """By how deep the lists are: as deep as the model's input they are one row under any name."""
        return self._inputs(body)[1]

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Files are not read."""
        raise MediaTypeError(f"This model takes JSON, not {media_type or 'a file'}.")

    def answer(self, answer: Answer) -> dict[str, Any]:
        """For classes the likeliest; else each output by its name."""
        if self.description.labels:
            return class_answer(self.description.labels, answer[0])
        outputs = zip(self.description.outputs, answer, strict=True)
        return {"outputs": {spec.name: _plain(array) for spec, array in outputs}}

    def _inputs(self, body: Any) -> tuple[list[Any], bool]:
        specs = self.description.inputs
        if isinstance(body, dict) and set(body) == {spec.name for spec in specs}:
            if len(specs) > 1:
                return [body], False
            return inputs_of({"input": body[specs[0].name]}, "row", self._several)
        return inputs_of(body, "row", self._several)

    def _several(self, value: Any, plural: bool) -> bool:
        if not isinstance(value, list):
            return False
        specs = self.description.inputs
        if not value and plural:
            return True
        return len(specs) > 1 or isinstance(next(iter(value), None), dict) or depth(value) > len(specs[0].shape)

    def _row(self, given: Any) -> Row:
        specs = self.description.inputs
        if not isinstance(given, dict):
            if len(specs) > 1:
                raise BadInputError(f"A row is an object with {', '.join(spec.name for spec in specs)}.")
            return (_array(specs[0], given),)
        if set(given) != {spec.name for spec in specs}:
            raise BadInputError(f"A row has these inputs, each once: {', '.join(spec.name for spec in specs)}.")
        return tuple(_array(spec, given[spec.name]) for spec in specs)


def _array(spec: TensorSpec, given: Any) -> np.ndarray:
    dtype = np.dtype(NUMPY[spec.datatype])
    try:
        numbers = np.asarray(given)
    except (ValueError, OverflowError):
        numbers = np.empty(0, object)  # rows of different lengths
    want = "×".join("any" if size < 0 else str(size) for size in spec.shape) or "one number"
    if numbers.dtype.kind not in "biuf":
        raise BadInputError(f"The input {spec.name} is no array of numbers ({want}).")
    fits = numbers.ndim == len(spec.shape) and all(
        size in (-1, have) for size, have in zip(spec.shape, numbers.shape, strict=True)
    )
    if not fits or not numbers.size:
        have = "×".join(map(str, numbers.shape)) or "one number"
        raise BadInputError(f"The input {spec.name} is {have}; the model takes {want}.")
    with np.errstate(all="ignore"):
        array = numbers.astype(dtype)
        exact = np.isfinite(array).all() if dtype.kind == "f" else (array == numbers).all()
    if not exact:
        raise BadInputError(f"The input {spec.name} has a number that is not of {spec.datatype}.")
    return array


def _plain(array: np.ndarray) -> Any:
    """As JSON can hold it: NaN and infinity are null."""
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        array = array.astype(object)
        array[~finite] = None
    return array.tolist()
