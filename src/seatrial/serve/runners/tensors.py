"""Run a model whose inputs' names, types and shapes are known: a .pt2 or ONNX file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from seatrial.serve.errors import BadInputError, ServeError
from seatrial.serve.readers.others import TensorReader
from seatrial.serve.served_model import Answer, Description, Reader, Row, WarmUp, compare
from seatrial.train.errors import first_line
from seatrial.train.saving.model_card import DATATYPES, NAMES, TensorSpec

#: Rows of each input → [N, …] of each output.
Runs = Callable[[Sequence[Sequence[np.ndarray]]], list[np.ndarray]]
#: A side of an input that has no fixed length is as long as this in the warm-up.
SOME_LENGTH = 8
#: Largest difference from the saved outputs.
TOLERANCE = 1e-2


class TensorModel:
    """Rows of one shape are one batch; for a program with a fixed batch it is filled up.

    Args:
        outputs: names, if there are as many; else they are numbered.
        fixed: the only batch size that the program takes; None: any.
        examples: rows, and the trained model's outputs for them: an array for each output.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[TensorSpec, ...],
        outputs: Sequence[str],
        run: Runs,
        *,
        max_batch: int,
        fixed: int | None = None,
        examples: tuple[list[Row], list[np.ndarray]] | None = None,
    ) -> None:
        self._run, self._fixed, self._examples = run, fixed, examples
        self.max_batch = min(max_batch, fixed) if fixed else max_batch
        sides = [tuple(SOME_LENGTH if side < 0 else side for side in spec.shape) for spec in inputs]
        zeros = tuple(np.zeros(shape, DATATYPES[spec.datatype]) for spec, shape in zip(inputs, sides, strict=True))
        self._row = examples[0][0] if examples else zeros
        self.description = Description(name, "tensors", inputs, self._specs(inputs, outputs))
        self.reader: Reader = TensorReader(self.description)

    def warm_up(self) -> WarmUp:
        """Run every batch size once; compare with the saved outputs."""
        began, difference = time.perf_counter(), 0.0
        rows, expected = self._examples or ([], [])
        parts = [self.predict(rows[at : at + self.max_batch]) for at in range(0, len(rows), self.max_batch)]
        answers = [answer for part in parts for answer in part]
        for number, want in enumerate(expected):
            got = np.stack([answer[number] for answer in answers])
            difference = max(difference, compare(got, want, TOLERANCE))
        size = 1
        while size < self.max_batch:
            self.predict([self._row] * size)
            size *= 2
        self.predict([self._row] * self.max_batch)
        return WarmUp(len(rows), difference, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """Return an array for each output, for each row."""
        for row in rows:
            for spec, array in zip(self.description.inputs, row, strict=True):
                if not spec.fits(array.shape) or array.dtype != DATATYPES[spec.datatype]:
                    have = list(array.shape)
                    raise BadInputError(f"The input {spec.name} has shape {have}, not {list(spec.shape)}.")
        answers: list[Answer] = [()] * len(rows)

        def shapes(number: int) -> tuple[tuple[int, ...], ...]:
            return tuple(array.shape for array in rows[number])

        for _, together in groupby(sorted(range(len(rows)), key=shapes), key=shapes):
            members = list(together)
            outputs = self._run_together([rows[number] for number in members])
            for place, number in enumerate(members):
                answers[number] = tuple(output[place] for output in outputs)
        return answers

    def _run_together(self, rows: list[Row]) -> list[np.ndarray]:
        filled = rows if self._fixed is None else rows + [rows[-1]] * (self._fixed - len(rows))
        outputs = self._run([list(column) for column in zip(*filled, strict=True)])
        for output in outputs:
            if output.ndim == 0 or len(output) != len(filled):
                raise ServeError(
                    f"the model gives an output of shape {output.shape} for a batch of {len(filled)}: "
                    "its first dimension has to be the batch",
                    "export it with a batch as the first dimension of inputs and outputs",
                )
        return outputs

    def _specs(self, inputs: tuple[TensorSpec, ...], names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """Determine the outputs by running one row."""
        try:
            arrays = self._run_together([self._row])
        except ServeError:
            raise
        except Exception as error:
            message = f"the model cannot be run on its own inputs: {first_line(error)}"
            raise ServeError(message, "export it again") from error
        unknown = [array.dtype for array in arrays if array.dtype not in NAMES]
        if unknown:
            raise ServeError(f"the model gives outputs of type {unknown[0]}, which JSON has no numbers for")
        if len(names) != len(arrays):
            names = [f"output{number}" for number in range(len(arrays))]
        varies = any(side < 0 for spec in inputs for side in spec.shape)
        return tuple(
            TensorSpec(name, NAMES[array.dtype], (-1,) * (array.ndim - 1) if varies else array.shape[1:])
            for name, array in zip(names, arrays, strict=True)
        )
