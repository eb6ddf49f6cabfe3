"""Read requests for models of tensors and of texts. numpy and tokenizers, no torch.

Shapes: a row of a text is int32 [L], its L real tokens: nothing is padded here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seatrial.serve.errors import BadInputError, MediaTypeError, ServeError, TooMuchError
from seatrial.serve.served_model import Answer, Description, Row
from seatrial.train.saving.model_card import DATATYPES, TensorSpec

#: Inputs in one request at most.
MOST_INPUTS = 256
#: Nested lists are counted up to this depth: numpy has 32 dimensions in its older versions.
_DEEPEST = 33
#: Characters of a text that are tokenised: many times as many as the tokens that the model reads.
MOST_CHARACTERS = 20_000


def inputs_of(body: Any, noun: str, several: Callable[[Any, bool], bool]) -> tuple[list[Any], bool]:
    """Return the inputs of a JSON body, and whether the client sent a list of them: the same names for every model.

    Args:
        body: ``{"input": …}`` or ``{"inputs": …}``, or with the noun (``image``, ``images``); a bare list is "inputs".
        several: return True if a value is a list of inputs, judging by the model's rank and not by the name; the second
            argument is True if the name is a plural.

    Raises BadInputError: none of the names is given, or two, or no inputs or too many.
    """
    value, plural = _named(body, noun)
    if not several(value, plural):
        return [value], False
    if not isinstance(value, list):
        raise BadInputError(f'"inputs" has to be a list of {noun}s.')
    if not value:
        raise BadInputError(f"A request holds 1 to {MOST_INPUTS} {noun}s, not none.")
    if len(value) > MOST_INPUTS:
        raise TooMuchError(f"{len(value)} {noun}s in one request: at most {MOST_INPUTS}.")
    return value, True


def _named(body: Any, noun: str) -> tuple[Any, bool]:
    if isinstance(body, list):
        return body, True
    names = {"input": False, noun: False, "inputs": True, f"{noun}s": True}
    if not (given := [name for name in names if isinstance(body, dict) and name in body]):
        raise BadInputError(f'The body has to be an object with "input" (one {noun}) or "inputs" (a list of them).')
    if len(given) > 1:
        raise BadInputError(f'The body has "{given[0]}" and "{given[1]}": send one of them.')
    return body[given[0]], names[given[0]]


def depth(value: Any) -> int:
    """Count how deep lists are nested, along the first of each."""
    found = 0
    while isinstance(value, list) and found < _DEEPEST:
        found, value = found + 1, value[0] if value else None
    return found


def class_answer(labels: Sequence[str], probabilities_C: np.ndarray) -> dict[str, Any]:
    """Return ``{"label", "probability", "probabilities": {label: …}}``, to six digits."""
    numbers = [round(number, 6) for number in probabilities_C.tolist()]
    likeliest = max(range(len(numbers)), key=numbers.__getitem__)
    every = dict(zip(labels, numbers, strict=True))
    return {"label": labels[likeliest], "probability": numbers[likeliest], "probabilities": every}


def checked_array(numbers: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Convert numbers to a model's type; None if one is out of its range, or no whole number."""
    with np.errstate(all="ignore"):
        array = numbers.astype(dtype)
        exact = np.isfinite(array).all() if dtype.kind == "f" else (array == numbers).all()
    return array if exact else None


@dataclass
class TensorReader:
    """A row for each input: nested lists, or for a model of several inputs an object of nested lists by name."""

    description: Description

    def rows(self, body: Any) -> tuple[list[Row], bool]:
        """Read ``{"input": one}``, ``{"inputs": [several]}``, a bare list, or an object of the model's own names.

        Lists that are as deep as the model's input are one row under any name.
        """
        given, several = self._inputs(body)
        return [self._row(row) for row in given], several

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Refuse files."""
        raise MediaTypeError(f"This model takes JSON, not {media_type or 'a file'}.")

    def answer(self, answer: Answer) -> dict[str, Any]:
        """Return the likeliest class, or each output by its name; NaN and infinity are null, which JSON can hold."""
        if self.description.labels:
            return class_answer(self.description.labels, answer[0])
        named = {}
        for spec, array in zip(self.description.outputs, answer, strict=True):
            if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
                array = array.astype(object)
                array[~finite] = None
            named[spec.name] = array.tolist()
        return {"outputs": named}

    def _inputs(self, body: Any) -> tuple[list[Any], bool]:
        specs = self.description.inputs
        if isinstance(body, dict) and set(body) == {spec.name for spec in specs}:
            if len(specs) > 1:
                return [body], False
            body = {"input": body[specs[0].name]}
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
        names = ", ".join(spec.name for spec in specs)
        if not isinstance(given, dict):
            if len(specs) > 1:
                raise BadInputError(f"A row is an object with {names}.")
            return (_array(specs[0], given),)
        if set(given) != {spec.name for spec in specs}:
            raise BadInputError(f"A row has these inputs, each once: {names}.")
        return tuple(_array(spec, given[spec.name]) for spec in specs)


def _array(spec: TensorSpec, given: Any) -> np.ndarray:
    try:
        numbers = np.asarray(given)
    except (ValueError, OverflowError):
        numbers = np.empty(0, object)  # rows of different lengths
    want = "×".join("any" if size < 0 else str(size) for size in spec.shape) or "one number"
    if numbers.dtype.kind not in "biuf":
        raise BadInputError(f"The input {spec.name} is not an array of numbers ({want}).")
    if not spec.fits(numbers.shape) or not numbers.size:
        have = "×".join(map(str, numbers.shape)) or "one number"
        raise BadInputError(f"The input {spec.name} is {have}; the model takes {want}.")
    if (array := checked_array(numbers, np.dtype(DATATYPES[spec.datatype]))) is None:
        raise BadInputError(f"The input {spec.name} has a number that is not of {spec.datatype}.")
    return array


@dataclass
class TextReader(TensorReader):
    """Texts as the model's own tokenizer, the text of tokenizer.json, cuts them, up to ``longest`` tokens."""

    tokenizer: str
    longest: int
    _opened: Any = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # each process makes its own

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Read plain text in UTF-8."""
        try:
            return self._row(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise BadInputError("The file is not UTF-8 text.") from error

    def _inputs(self, body: Any) -> tuple[list[Any], bool]:
        """Read ``{"input": one}``, ``{"inputs": [several]}``, a bare text or a list of them."""
        if isinstance(body, str):
            return [body], False
        return inputs_of(body, "text", lambda value, _: isinstance(value, list))

    def _row(self, given: Any) -> Row:
        if not isinstance(given, str):
            raise BadInputError("A text has to be a string.")
        text = given[:MOST_CHARACTERS]
        if not text.strip():
            raise BadInputError("The text is empty.")
        if self._opened is None:
            self._opened = open_tokenizer(self.tokenizer, self.longest)
        try:
            encoded = self._opened.encode(text)
        except (TypeError, UnicodeEncodeError):  # half of a surrogate pair, which JSON can hold and UTF-8 cannot
            encoded = self._opened.encode(text.encode("utf-8", "replace").decode())
        if not encoded.ids:  # control characters, of a tokenizer that adds nothing of its own
            raise BadInputError("The text has no words.")
        return (np.array(encoded.ids, np.int32),)


def open_tokenizer(text: str, longest: int) -> Any:
    """Open tokenizer.json's text; the result cuts to ``longest`` tokens. Raises ServeError."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        message = "texts are cut by the package tokenizers, which is missing"
        raise ServeError(message, fix="pip install tokenizers") from error
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # its errors are bare Exceptions
        raise ServeError("tokenizer.json cannot be read", fix="train or export the model again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    return tokenizer
