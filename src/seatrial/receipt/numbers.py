"""A receipt's numbers as arrays: what its plots are drawn from."""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from seatrial.receipt.plot import Plot


class Series(NamedTuple):
    """One number over time: at most 400 points, the lowest and highest of each stretch among them.

    Attributes:
        name: e.g. ``loss``. x: what ``at`` counts: seconds, step, epoch, line or rate.
        at, values: numpy arrays of float64 where numpy is installed, else arrays of the standard library.
    """

    name: str
    x: str
    unit: str
    at: Any
    values: Any


def series_of(plots: Sequence[Plot], name: str) -> Series:
    """The line of this name; of what the target reported, also without ``train_`` in front. Raises KeyError."""
    lines = [(plot, line) for plot in plots for line in plot.lines]
    for wanted in (name, f"train_{name}"):
        for plot, line in lines:
            if line.name == wanted:
                at, values = zip(*line.points, strict=True) if line.points else ((), ())
                return Series(line.name, plot.x, plot.unit, _array(at), _array(values))
    known = ", ".join(dict.fromkeys(line.name for _, line in lines)) or "none"
    raise KeyError(f"{name!r}; this receipt has curves of: {known}")


def rows(plots: Sequence[Plot]) -> Iterator[dict[str, Any]]:
    """A row for each point of each curve."""
    for plot in plots:
        for line in plot.lines:
            for at, value in line.points:
                yield {"plot": plot.id, "name": line.name, "x": plot.x, "at": at, "value": value, "unit": plot.unit}


def _array(values: Sequence[float]) -> Any:
    try:
        return importlib.import_module("numpy").asarray(values, dtype="float64")
    except ModuleNotFoundError:
        return array("d", values)
