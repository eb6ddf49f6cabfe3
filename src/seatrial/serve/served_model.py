"""Describe a served model: in the process that computes, and in those that speak HTTP.

Shapes: a row is one example without a batch dimension, a tuple with an array for each of the model's inputs; an answer
is the same for its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from seatrial.serve.errors import ServeError
from seatrial.train.saving.model_card import TensorSpec

#: A number format.
Format = TypeVar("Format")
Row = tuple[np.ndarray, ...]
Answer = tuple[np.ndarray, ...]
#: Largest difference of a probability. fp32 on another device and fp16 differ by less than 0.005 on trained networks;
#: a wrong normalisation, weight or order of classes by tenths.
TOLERANCE = 0.02

_TOGETHER = "train or export it again: the model and its examples are written together"


class Description(NamedTuple):
    """Public facts of a model; sent to the front processes. ``name``: in addresses: /v2/models/NAME.

    ``kind``: ``image``, ``text`` or ``tensors``: the page that tries it, and what ``POST /predict`` takes. ``labels``:
    of the classes, in order; empty where the outputs are not classes.
    """

    name: str
    kind: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...] = ()


def classifier(name: str, kind: str, taken: TensorSpec, labels: Sequence[str]) -> Description:
    """Describe a model of one input that gives the probabilities of classes."""
    probabilities = TensorSpec("probabilities", "FP32", (len(labels),))
    return Description(name, kind, (taken,), (probabilities,), tuple(labels))


class Reader(Protocol):
    """Requests to rows and answers to JSON, in a front. Picklable, without torch. Raises BadInputError: unreadable."""

    description: Description

    def rows(self, body: Any) -> tuple[list[Row], bool]:
        """Read a parsed JSON body; True if it is a list of inputs: the answer then is a list, too."""

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Read an uploaded file: an image, or plain text."""

    def answer(self, answer: Answer) -> dict[str, Any]:
        """Return the answer of ``POST /predict``: for classes the label, its probability, and all probabilities."""


class WarmUp(NamedTuple):
    """The absolute difference from saved examples before the first request; ``seconds``: loading and capturing too."""

    examples: int
    largest_difference: float
    seconds: float


class ServedModel(Protocol):
    """A model on its device, in the process that computes. Not thread-safe."""

    description: Description
    reader: Reader
    max_batch: int

    def warm_up(self) -> WarmUp:
        """Capture graphs, run each batch size, compare outputs. Raises ServeError: they differ, or are not finite."""

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Compute at most ``max_batch`` rows, in order. Raises DeviceLostError; BadInputError if they do not fit."""


def compare(answers: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> float:
    """Return the largest absolute difference. Raises ServeError: beyond tolerance, not finite, or of other shapes."""
    if answers.shape != expected.shape:
        raise ServeError(
            f"the model answers {answers.shape[1:]} where {expected.shape[1:]} was saved with it", fix=_TOGETHER
        )
    if not np.isfinite(answers).all():
        raise ServeError("the model's outputs are not finite numbers", fix="train it again: its weights are damaged")
    if (difference := float(np.abs(answers.astype(np.float64) - expected).max())) > tolerance:
        message = f"the model's outputs differ by {difference:.3g} from those saved with it (at most {tolerance:g})"
        raise ServeError(message, fix=_TOGETHER)
    return difference


def compare_in(formats: Sequence[Format], answers: Callable[[Format], np.ndarray], expected: np.ndarray) -> float:
    """Return the difference in the first number format whose answers agree. Raises ServeError if none does."""
    for each in formats[:-1]:
        with suppress(ServeError):
            return compare(answers(each), expected)
    return compare(answers(formats[-1]), expected)
