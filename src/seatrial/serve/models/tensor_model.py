"""A model of which its inputs' names, types and shapes are known: a .pt2 or ONNX file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

import numpy as np

from seatrial.serve.errors import BadInputError, ServeError
from seatrial.serve.models.comparison import compare
from seatrial.serve.models.datatypes import NUMPY
from seatrial.serve.models.tensor_reader import TensorReader
from seatrial.serve.served_model import Answer, Description, Reader, Row, TensorSpec, WarmUp
from seatrial.train.errors import first_line

#: A side of an input that has no fixed length is as long as this in the warm-up.
SOME_LENGTH = 8


class Runs(Protocol):
    """Rows of each input → [N, …] of each output."""

    def __call__(self, columns: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]: ...


class TensorModel:
    """Rows of one shape are one batch; a program with a batch of its own gets it filled up.

    Args:
        outputs: specs by the outputs of one row; None: found out by running it.
        fixed: the only batch size that the program takes; None: any.
        examples: rows, and what the trained model gave for them: an array for each output.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[TensorSpec, ...],
        output_names: Callable[[int], Sequence[str]],
        run: Runs,
        *,
        max_batch: int,
        fixed: int | None = None,
        examples: tuple[list[Row], list[np.ndarray]] | None = None,
        labels: tuple[str, ...] = (),
        tolerance: float = 1e-2,
    ) -> None:
        self._run, self._fixed, self._examples, self._tolerance = run, fixed, examples, tolerance
        self.max_batch = min(max_batch, fixed) if fixed else max_batch
        outputs = self._outputs(inputs, output_names)
        one = len(outputs) == 1 and outputs[0].shape == (len(labels),)
        self.description = Description(name, "tensors", inputs, outputs, labels if one else ())
        self.reader: Reader = TensorReader(self.description)

    def warm_up(self) -> WarmUp:
        """Every batch size once; the saved outputs compared."""
        began = time.perf_counter()
        row, difference = self._some_row(), 0.0
        if self._examples:
            rows, expected = self._examples
            row = rows[0]
            answers = [self.predict(rows[i : i + self.max_batch]) for i in range(0, len(rows), self.max_batch)]
            flat = [answer for part in answers for answer in part]
            for number, want in enumerate(expected):
                got = np.stack([answer[number] for answer in flat])
                found = compare(got, want, last=True, tolerance=self._tolerance)
                difference = max(difference, found or 0.0)
        size = 1
        while size < self.max_batch:
            self.predict([row] * size)
            size *= 2
        self.predict([row] * self.max_batch)
        return WarmUp(len(self._examples[0]) if self._examples else 0, difference, time.perf_counter() - began)

    def predict(self, rows: Sequence[Row]) -> list[Answer]:
        """An array for each output, for each row."""
        for row in rows:
            self._check(row)
        answers: list[Answer] = [()] * len(rows)

        def shapes(number: int) -> tuple[tuple[int, ...], ...]:
            return tuple(array.shape for array in rows[number])

        for _, together in groupby(sorted(range(len(rows)), key=shapes), key=shapes):
            members = list(together)
            outputs = self._together([rows[number] for number in members])
            for place, number in enumerate(members):
                answers[number] = tuple(output[place] for output in outputs)
        return answers

    def _together(self, rows: list[Row]) -> list[np.ndarray]:
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

    def _check(self, row: Row) -> None:
        for spec, array in zip(self.description.inputs, row, strict=True):
            fits = array.ndim == len(spec.shape) and all(
                size in (-1, have) for size, have in zip(spec.shape, array.shape, strict=True)
            )
            if not fits or array.dtype != NUMPY[spec.datatype]:
                raise BadInputError(f"The input {spec.name} has shape {list(array.shape)}, not {list(spec.shape)}.")

    def _some_row(self, inputs: tuple[TensorSpec, ...] | None = None) -> Row:
        specs = inputs or self.description.inputs
        sides = [tuple(SOME_LENGTH if side < 0 else side for side in spec.shape) for spec in specs]
        return tuple(np.zeros(shape, NUMPY[spec.datatype]) for spec, shape in zip(specs, sides, strict=True))

    def _outputs(self, inputs: tuple[TensorSpec, ...], names: Callable[[int], Sequence[str]]) -> tuple[TensorSpec, ...]:
        """Found out by running one row."""
        row = self._examples[0][0] if self._examples else self._some_row(inputs)
        try:
            arrays = self._together([row])
        except ServeError:
            raise
        except Exception as error:
            said = first_line(error)
            raise ServeError(f"the model cannot be run on its own inputs: {said}", "export it again") from error
        unknown = [array.dtype for array in arrays if array.dtype not in _NAMES]
        if unknown:
            raise ServeError(f"the model gives outputs of type {unknown[0]}, which JSON has no numbers for")
        open_sides = any(side < 0 for spec in inputs for side in spec.shape)
        return tuple(
            TensorSpec(name, _NAMES[array.dtype], (-1,) * (array.ndim - 1) if open_sides else array.shape[1:])
            for name, array in zip(names(len(arrays)), arrays, strict=True)
        )


_NAMES = {np.dtype(kind): name for name, kind in NUMPY.items()}
