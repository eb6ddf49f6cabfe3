"""What is served: a model as the server sees it, in the process that computes and in those that talk HTTP.

Shapes: a row is one example without a batch dimension, a tuple with an array for each of the model's inputs; an answer
is the same for its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Row = tuple[np.ndarray, ...]
Answer = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of the model.

    Attributes:
        datatype: of the Open Inference Protocol: FP32, INT64, UINT8, BYTES …
        shape: of one row; -1 where the length varies.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Description:
    """What everybody may know of a model; it travels to the front processes.

    Attributes:
        name: in addresses: /v2/models/NAME. kind: which page tries it, and what ``POST /predict`` takes.
        labels: of the classes, in order; empty where the outputs are no classes.
    """

    name: str
    kind: str  # image, text, tensors
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...] = ()


class Reader(Protocol):
    """Requests to rows and answers to JSON, in a front process. Picklable; imports no torch.

    Each method raises ``serve.errors.BadInputError`` with one sentence for what it cannot read.
    """

    description: Description

    def rows(self, body: Any) -> list[Row]:
        """Of a parsed JSON body."""

    def many(self, body: Any) -> bool:
        """Whether this body, of which ``rows`` were read, is a list of inputs: then so is the answer."""

    def row_of_file(self, data: bytes, media_type: str) -> Row:
        """Of an uploaded file: an image, or plain text."""

    def answer(self, answer: Answer) -> dict[str, Any]:
        """As ``POST /predict`` gives it back: for classes the label, its probability, and all probabilities."""


@dataclass(frozen=True)
class WarmUp:
    """What was compared before the first request was let in.

    Attributes:
        examples: how many saved examples were compared; 0 where none were saved beside the model.
        largest_difference: of any output, absolute. seconds: loading, capturing and comparing.
    """

    examples: int
    largest_difference: float
    seconds: float


class ServedModel(Protocol):
    """A model on its device, in the process that computes. Not thread-safe."""

    description: Description
    reader: Reader
    max_batch: int

    def warm_up(self) -> WarmUp:
        """Capture what is captured, run every batch size once, compare with the saved outputs.

        Raises ServeError: the outputs differ beyond tolerance, or are not finite.
        """

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """One batch of at most ``max_batch`` rows, answers in the same order.

        Raises DeviceLostError: the GPU is gone. BadInputError: these rows do not fit the model.
        """
