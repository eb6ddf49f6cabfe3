"""What lies beside a model's file: the examples, which also name its recipe and how its images are normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seatrial.serve.models.recipe import told_plainly
from seatrial.serve.served_model import Row
from seatrial.train.saving.examples import Examples, examples_path, read_examples


@dataclass(frozen=True)
class Beside:
    """The examples, or None."""

    examples: Examples | None

    @classmethod
    def of(cls, path: Path) -> Beside:
        """Raises ServeError: they are there, and damaged."""
        beside = examples_path(path)
        if not beside.is_file():
            return cls(None)
        with told_plainly():
            return cls(read_examples(beside))

    def rows(self, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[list[Row], list[np.ndarray]] | None:
        """Example rows in the order of these inputs, and the outputs; by place where the names differ."""
        if self.examples is None or len(self.examples.inputs) != len(inputs):
            return None
        if len(self.examples.outputs) != len(outputs):
            return None
        given, found = self.examples.inputs, self.examples.outputs
        columns = [given[name] for name in inputs] if set(inputs) == set(given) else [*given.values()]
        expected = [found[name] for name in outputs] if set(outputs) == set(found) else [*found.values()]
        rows = [tuple(each.numpy() for each in row) for row in zip(*columns, strict=True)]
        return rows, [each.numpy() for each in expected]
