"""Plots as SVG, drawn without a library: lines, a grid, ticks and a legend. Colours are the page's CSS classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from seatrial.receipt.formatting import figure
from seatrial.receipt.plot import Line, Plot

#: Size in user units; the page scales it to its column.
WIDTH, HEIGHT = 376, 216
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 40

#: Line colours of the page (``.line0`` … in look.css).
COLOURS = 8

#: Points of a line that are few enough to be marked each, as an epoch's test results are.
MAX_DOTS = 12

#: User units that a tick's label has for itself along the x axis.
_TICK_WIDTH = 80

_X_LABELS = {
    "seconds": "seconds",
    "step": "step",
    "epoch": "epoch",
    "line": "report",
    "rate": "requests/s",
    "trial": "trial",
}


def draw(
    plot: Plot,
    window: tuple[float, float] | None = None,
    *,
    styles: Sequence[str] | None = None,
    width: int = WIDTH,
) -> str:
    """One ``<svg>``.

    Percentages span 0 to 100 and all that is measured over time begins at 0; a metric does unless that would hide
    its curve.

    Args:
        window: the training window in seconds, shaded in plots over time.
        styles: the classes of each line; default: a colour each. With ``dots`` it has no curve, with
            ``faint`` or ``plain`` no dots.
        width: in user units.
    """
    xs = [x for line in plot.lines for x, _ in line.points]
    ys = [y for line in plot.lines for _, y in line.points]
    over_time = plot.x == "seconds"
    x_low, x_high = _spread(0.0 if over_time else min(xs), max(xs))
    low = min(0.0, *ys) if over_time else min(ys)
    y_ticks = [0.0, 25.0, 50.0, 75.0, 100.0] if plot.unit == "%" else _ticks(*_y_range(low, max(ys)))
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)
    floor = HEIGHT - BOTTOM

    def at_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (width - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return floor - (y - y_low) / (y_high - y_low) * (floor - TOP)

    parts = [f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(_summary(plot))}">']
    if over_time and window:
        left, right = (at_x(min(max(x, x_low), x_high)) for x in window)
        parts.append(f'<path class="window" d="M{left:.1f} {TOP}H{right:.1f}V{floor}H{left:.1f}z">')
        parts.append("<title>the training window</title></path>")
    for y, words in zip(y_ticks, labels(y_ticks), strict=True):
        parts.append(f'<path class="grid" d="M{LEFT} {at_y(y):.1f}H{width - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at_y(y) + 3.5:.1f}" text-anchor="end">{words}</text>')
    about = max(2, (width - LEFT - RIGHT) // _TICK_WIDTH)
    x_ticks = [tick for tick in _ticks(x_low, x_high, about) if x_low <= tick <= x_high]
    for x, words in zip(x_ticks, labels(x_ticks), strict=True):
        anchor = "end" if at_x(x) > width - 24 else "middle"
        parts.append(f'<text x="{at_x(x):.1f}" y="{floor + 16}" text-anchor="{anchor}">{words}</text>')
    middle = (LEFT + width - RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{_X_LABELS[plot.x]}</text>')
    for line, style in zip(plot.lines, styles or _colours(plot), strict=True):
        parts.append(_curve(line, style, at_x, at_y))
    return "".join([*parts, "</svg>"])


class Entry(NamedTuple):
    """A line in the legend: its classes, its name, and what ``value`` is (``max``, or nothing)."""

    colour: str
    name: str
    what: str
    value: str


#: What a legend says of a line: what the value is (``mean``), and the value.
Told = tuple[str, float]


def legend(plot: Plot, values: Sequence[Told] | None = None, styles: Sequence[str] | None = None) -> list[Entry]:
    """Each line's name and value in its colour: those told, else the highest over time and the last of a metric."""
    told = values or [_telling(plot, line) for line in plot.lines]
    return [
        Entry(style, line.name, f"{what} " if what else "", _figure(plot, value))
        for line, style, (what, value) in zip(plot.lines, styles or _colours(plot), told, strict=True)
    ]


def _colours(plot: Plot) -> list[str]:
    return [f"line{index % COLOURS}" for index in range(len(plot.lines))]


def _curve(line: Line, style: str, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    """A polyline; a dot where there is only one point."""
    title = f"<title>{escape(line.name)}</title>"
    scattered = " dots" in style
    if len(line.points) == 1:
        x, y = line.points[0]
        return f'<circle class="{style}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2.5">{title}</circle>'
    path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in line.points)
    dots = line.points if scattered or (len(line.points) <= MAX_DOTS and not _is_plain(style)) else ()
    marks = "".join(
        f'<circle class="{style}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="{3.4 if scattered else 2.2}"><title>'
        f"{escape(line.name)} {figure(y)} at {figure(x)}</title></circle>"
        for x, y in dots
    )
    return marks if scattered else f'<path class="curve {style}" d="M{path}">{title}</path>{marks}'


def _is_plain(style: str) -> bool:
    return style.endswith((" faint", " plain"))


def _telling(plot: Plot, line: Line) -> Told:
    if plot.x == "seconds":
        return "max", max(y for _, y in line.points)
    return "", line.points[-1][1]


def _figure(plot: Plot, value: float) -> str:
    return f"{value:.3g}" if plot.x == "seconds" and abs(value) < 1000 else figure(value)


def _y_range(low: float, high: float) -> tuple[float, float]:
    """From 0 where the curve still fills half the plot then; else a little around it."""
    if 0 <= low <= high / 2:
        return _spread(0.0, high)
    return _spread(low, high)


def _spread(low: float, high: float) -> tuple[float, float]:
    """A range with some width, so that a flat line has a place."""
    if high > low:
        return low, high
    return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) that enclose the range."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def seconds_ticks(low: float, high: float) -> list[float]:
    """Round numbers inside a range of time, few enough for a plot as wide as the page."""
    return [tick for tick in _ticks(*_spread(low, high), 8) if low <= tick <= high]


def short(value: float) -> str:
    """A tick's label."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def labels(ticks: Sequence[float]) -> list[str]:
    """Of neighbouring ticks: with as many digits as tell them apart."""
    words = [short(tick) for tick in ticks]
    if len(set(words)) == len(words):
        return words
    step = min(abs(one - other) for one, other in pairwise(ticks))
    return [f"{tick:.{max(0, -math.floor(math.log10(step) + 1e-6))}f}" for tick in ticks]


def _summary(plot: Plot) -> str:
    """What a screen reader says."""
    last = ", ".join(f"{line.name} last {figure(line.points[-1][1])}" for line in plot.lines)
    return f"{plot.title} over {plot.x}: {last}"
