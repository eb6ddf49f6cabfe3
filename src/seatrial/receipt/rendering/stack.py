"""Where the steps' time went over the run, as SVG: one column for each stretch of time, its parts one on the other.

A part has one colour (``line0`` … of look.css) in the bar and in the plot, whichever others there are.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from seatrial.diagnosis.anatomy import REGIONS
from seatrial.receipt.formatting import percent
from seatrial.receipt.look.svg import seconds_ticks
from seatrial.receipt.model import Plot

#: Of the drawing in user units; the page stretches it to its own width and height, so it holds no text.
WIDTH, HEIGHT = 1000, 100

#: Colours in look.css; a part that comes after them begins again.
COLOURS = 9


class Stack(NamedTuple):
    """An ``<svg>`` without text, and (percent of its width, words) of the ticks below it."""

    svg: str
    ticks: list[tuple[float, str]]


def colour_of(region: str) -> str:
    """The class of a part, by its ID or by its words."""
    for number, pair in enumerate(REGIONS.items()):
        if region in pair:
            return f"line{number % COLOURS}"
    return f"line{COLOURS - 1}"


def can_be_stacked(plot: Plot) -> bool:
    """Whether all lines have the same points, and more than one; in receipts of before, each has its own."""
    places = {tuple(x for x, _ in line.points) for line in plot.lines}
    return len(places) == 1 and len(places.pop()) > 1


def draw_stack(plot: Plot) -> Stack:
    """Of lines in percent that share their points; each point is of the time since the point before."""
    xs = [x for x, _ in plot.lines[0].points]
    begin_s, seconds = xs[0], max(xs[-1] - xs[0], 1e-9)
    at_x = [WIDTH * (x - begin_s) / seconds for x in xs]
    most = ", ".join(f"{line.name} at most {percent(max(y for _, y in line.points))}" for line in plot.lines)
    label = escape(f"{plot.title} over seconds: {most}")
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">']
    below = [0.0] * len(xs)
    for line in plot.lines:
        above = [min(100.0, low + y) for low, (_, y) in zip(below, line.points, strict=True)]
        parts.append(f'<path class="area {colour_of(line.name)}" d="{_outline(at_x, below, above)}">')
        parts.append(f"<title>{escape(line.name)}</title></path>")
        below = above
    ticks = [(100 * (tick - begin_s) / seconds, f"{tick:g} s") for tick in seconds_ticks(begin_s, xs[-1])]
    return Stack("".join([*parts, "</svg>"]), ticks)


def _outline(at_x: list[float], below: list[float], above: list[float]) -> str:
    """Along the upper steps to the end, and back along the lower ones."""

    def at_y(share: float) -> str:
        return f"{HEIGHT * (1 - share / 100):.1f}"

    there = "".join(f"L{at_x[i - 1]:.1f} {at_y(above[i])}H{at_x[i]:.1f}" for i in range(1, len(at_x)))
    back = "".join(f"L{at_x[i]:.1f} {at_y(below[i])}H{at_x[i - 1]:.1f}" for i in range(len(at_x) - 1, 0, -1))
    return f"M0 {at_y(below[1])}{there}{back}z"
