"""Plots, stacked shares and histograms as SVG, drawn without a library. Colours are the page's CSS classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from seatrial.receipt.section import Bars, LegendValue, Line, Plot
from seatrial.receipt.values import figure, percent

#: Size in user units; the page scales it to its column.
WIDTH, HEIGHT = 376, 216
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 40
#: Line colours of the page (``.line0`` … in look.css).
COLOURS = 8
#: Points of a line that are few enough to be marked each, as an epoch's test results are.
MAX_DOTS = 12
#: User units that a tick's label has for itself along the x axis.
_TICK_WIDTH = 80

_X_LABELS = {"line": "report", "rate": "requests/s"}
#: Size of a stack in user units; the page stretches it to its own width and height, so it holds no text.
_STACK_WIDTH, _STACK_HEIGHT = 1000, 100
#: Bars that can be distinguished at this width; more sizes are joined, neighbours first.
MAX_BARS = 24


def draw(
    plot: Plot, window: tuple[float, float] | None = None, *, styles: Sequence[str] | None = None, width: int = WIDTH
) -> str:
    """Return one ``<svg>``, of a ``width`` in user units.

    Percentages span 0 to 100, all that is measured over time begins at 0, and a metric where that hides no curve.
    ``window``: the training window in seconds, shaded in plots over time. ``styles``: the classes of each line;
    default: a colour each. With ``dots`` it has no curve, with ``faint`` or ``plain`` no dots.
    """
    xs = [x for line in plot.lines for x, _ in line.points]
    ys = [y for line in plot.lines for _, y in line.points]
    over_time = plot.x == "seconds"
    x_low, x_high = _spread(0.0 if over_time else min(xs), max(xs))
    low = min(0.0, *ys) if over_time else min(ys)
    if 0 <= low <= max(ys) / 2:
        low = 0.0  # the curve still fills half the plot
    y_ticks = [0.0, 25.0, 50.0, 75.0, 100.0] if plot.unit == "%" else _ticks(*_spread(low, max(ys)))
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)
    floor = HEIGHT - BOTTOM

    def at_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (width - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return floor - (y - y_low) / (y_high - y_low) * (floor - TOP)

    last = ", ".join(f"{line.name} last {figure(line.points[-1][1])}" for line in plot.lines)
    summary = escape(f"{plot.title} over {plot.x}: {last}")
    parts = [f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{summary}">']
    if over_time and window:
        left, right = (at_x(min(max(x, x_low), x_high)) for x in window)
        parts.append(f'<path class="window" d="M{left:.1f} {TOP}H{right:.1f}V{floor}H{left:.1f}z">')
        parts.append("<title>the training window</title></path>")
    for y, words in zip(y_ticks, _labels(y_ticks), strict=True):
        parts.append(f'<path class="grid" d="M{LEFT} {at_y(y):.1f}H{width - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at_y(y) + 3.5:.1f}" text-anchor="end">{words}</text>')
    about = max(2, (width - LEFT - RIGHT) // _TICK_WIDTH)
    counted = len({*xs}) > 1 and all(x == int(x) for x in xs)  # trials, reports: ticks are integers
    x_ticks = [t for t in _ticks(x_low, x_high, about) if x_low <= t <= x_high and not (counted and t % 1)]
    for x, words in zip(x_ticks, _labels(x_ticks), strict=True):
        anchor = "end" if at_x(x) > width - 24 else "middle"
        parts.append(f'<text x="{at_x(x):.1f}" y="{floor + 16}" text-anchor="{anchor}">{words}</text>')
    middle = (LEFT + width - RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{_X_LABELS.get(plot.x, plot.x)}</text>')
    for line, style in zip(plot.lines, styles or _colours(plot), strict=True):
        parts.append(_curve(line, style, at_x, at_y))
    return "".join([*parts, "</svg>"])


class LegendEntry(NamedTuple):
    """A line in the legend: its classes, its name, and the kind (``max``, or nothing) of its value."""

    colour: str
    name: str
    what: str
    value: str


def legend(
    plot: Plot, values: Sequence[LegendValue] | None = None, styles: Sequence[str] | None = None
) -> list[LegendEntry]:
    """Return each line's name and value in its colour; by default the highest over time and the last of a metric."""
    timed = plot.x == "seconds"
    last = [("max", max(y for _, y in line.points)) if timed else ("", line.points[-1][1]) for line in plot.lines]
    return [
        LegendEntry(
            style, line.name, kind and f"{kind} ", f"{value:.3g}" if timed and abs(value) < 1000 else figure(value)
        )
        for line, style, (kind, value) in zip(plot.lines, styles or _colours(plot), values or last, strict=True)
    ]


def _colours(plot: Plot) -> list[str]:
    return [f"line{index % COLOURS}" for index in range(len(plot.lines))]


def _curve(line: Line, style: str, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    """Return a polyline, or a dot for a single point."""
    title = f"<title>{escape(line.name)}</title>"
    scattered = " dots" in style
    if len(line.points) == 1:
        x, y = line.points[0]
        return f'<circle class="{style}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2.5">{title}</circle>'
    path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in line.points)
    few = len(line.points) <= MAX_DOTS and not style.endswith((" faint", " plain"))
    marks = "".join(
        f'<circle class="{style}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="{3.4 if scattered else 2.2}"><title>'
        f"{escape(line.name)} {figure(y)} at {figure(x)}</title></circle>"
        for x, y in (line.points if scattered or few else ())
    )
    return marks if scattered else f'<path class="curve {style}" d="M{path}">{title}</path>{marks}'


def _spread(low: float, high: float) -> tuple[float, float]:
    """Return a range with some width, so that a flat line has a place."""
    if high > low:
        return low, high
    return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten) that enclose the range."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def _short(value: float) -> str:
    """Return a tick's label."""
    units = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    scale, unit = next((each for each in units if abs(value) >= each[0]), (1.0, ""))
    return f"{value / scale:.3g}{unit}" if abs(value) < 1e12 else f"{value:.3g}"


def _labels(ticks: Sequence[float]) -> list[str]:
    """Return labels of neighbouring ticks, with as many digits as distinguish them."""
    words = [_short(tick) for tick in ticks]
    if len(set(words)) == len(words):
        return words
    step = min(abs(one - other) for one, other in pairwise(ticks))
    return [f"{tick:.{max(0, -math.floor(math.log10(step) + 1e-6))}f}" for tick in ticks]


def draw_stack(plot: Plot, colours: Sequence[str]) -> tuple[str, list[tuple[float, str]]]:
    """Draw lines in percent that share their points, stacked; each point is of the time since the point before.

    Returns an ``<svg>`` without text, and (percent of its width, label) of the ticks below it.
    """
    xs = [x for x, _ in plot.lines[0].points]
    begin_s, seconds = xs[0], max(xs[-1] - xs[0], 1e-9)
    at_x = [_STACK_WIDTH * (x - begin_s) / seconds for x in xs]
    most = ", ".join(f"{line.name} at most {percent(max(y for _, y in line.points))}" for line in plot.lines)
    label = escape(f"{plot.title} over seconds: {most}")
    box = f'viewBox="0 0 {_STACK_WIDTH} {_STACK_HEIGHT}" preserveAspectRatio="none"'
    parts = [f'<svg {box} role="img" aria-label="{label}">']
    below = [0.0] * len(xs)
    for line, colour in zip(plot.lines, colours, strict=True):
        above = [min(100.0, low + y) for low, (_, y) in zip(below, line.points, strict=True)]
        parts.append(f'<path class="area {colour}" d="{_outline(at_x, below, above)}">')
        parts.append(f"<title>{escape(line.name)}</title></path>")
        below = above
    ticks = [tick for tick in _ticks(*_spread(begin_s, xs[-1]), 8) if begin_s <= tick <= xs[-1]]
    return "".join([*parts, "</svg>"]), [(100 * (tick - begin_s) / seconds, f"{tick:g} s") for tick in ticks]


def _outline(at_x: list[float], below: list[float], above: list[float]) -> str:
    """Return a path along the upper steps to the end, and back along the lower ones."""

    def at_y(share: float) -> str:
        return f"{_STACK_HEIGHT * (1 - share / 100):.1f}"

    there = "".join(f"L{at_x[i - 1]:.1f} {at_y(above[i])}H{at_x[i]:.1f}" for i in range(1, len(at_x)))
    back = "".join(f"L{at_x[i]:.1f} {at_y(below[i])}H{at_x[i - 1]:.1f}" for i in range(len(at_x) - 1, 0, -1))
    return f"M0 {at_y(below[1])}{there}{back}z"


def draw_bars(block: Bars) -> str:
    """Draw a bar for each size, smallest first; its height is the amount."""
    every = -(-len(block.pairs) // MAX_BARS)
    groups = [block.pairs[start : start + every] for start in range(0, len(block.pairs), every)]
    labels = [str(low) if low == high else f"{low}–{high}" for low, high in ((g[0][0], g[-1][0]) for g in groups)]
    bars = list(zip(labels, (sum(amount for _, amount in group) for group in groups), strict=True))
    unit, noun = block.unit.lower(), block.title.partition(" ")[0].lower()
    most = max(height for _, height in bars)
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    floor = HEIGHT - BOTTOM
    words = ", ".join(f"{label} {noun}: {figure(height)}" for label, height in bars)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{unit} by size: {words}">']
    for share in (0.0, 0.5, 1.0):
        y = floor - share * (floor - TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{_short(most * share)}</text>')
    each = -(-len(bars) * max(map(len, labels)) // 24)  # labels that do not touch
    for index, (label, height) in enumerate(bars):
        x, tall = LEFT + index * step, height / most * (floor - TOP)
        title = f"<title>{label} {noun}: {figure(height)} {unit}</title>"
        place = f'x="{x + step * 0.1:.1f}" y="{floor - tall:.1f}"'
        size = f'width="{min(step * 0.8, 40):.1f}" height="{max(tall, 0.5):.1f}"'
        parts.append(f'<rect class="bar" {place} {size}>{title}</rect>')
        if index % each == 0:
            middle = x + step * 0.1 + min(step * 0.8, 40) / 2
            parts.append(f'<text x="{middle:.1f}" y="{floor + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{noun}</text>')
    return "".join([*parts, "</svg>"])
