"""Plot: lines over one x axis, as a receipt keeps them."""

from __future__ import annotations

from typing import Literal

from seatrial.receipt.record import Record


class Line(Record):
    """A line of a plot: at most series.MAX_POINTS points."""

    name: str
    points: tuple[tuple[float, float], ...]


#: ID of the plot of where the steps' time went, in shares that add up.
STEPS_PLOT = "steps"


class Plot(Record):
    """Lines over one x axis.

    ``x`` is ``seconds`` (since the first event), ``step``, ``epoch``, ``line``, ``rate`` (requests a second), or
    ``trial`` (of a sweep).
    """

    id: str
    title: str
    unit: str
    x: Literal["seconds", "step", "epoch", "line", "rate", "trial"]
    lines: tuple[Line, ...]
