"""Line and bar charts as SVG text: no package to install where the numbers are made."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 40, 50
#: Colours that stay apart for colour-blind readers: Okabe and Ito 2008, https://jfly.uni-koeln.de/color/.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

Points = Sequence[tuple[float, float]]


def line_chart(series: Mapping[str, Points], *, title: str, x: str, y: str) -> str:
    """One line a series over logarithmic axes; all numbers must be above 0."""
    points = [point for line in series.values() for point in line]
    across = _Axis([point[0] for point in points], LEFT, WIDTH - RIGHT)
    down = _Axis([point[1] for point in points], HEIGHT - BOTTOM, TOP)
    parts = [
        *_head(title, HEIGHT),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x, "middle"),
        _text(8, TOP - 12, y, "start"),
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#666"/>',
    ]
    parts += [_text(across(value), HEIGHT - BOTTOM + 18, _figure(value), "middle") for value in _ticks(points, 0)]
    parts += [_text(LEFT - 6, down(value) + 4, _figure(value), "end") for value in _ticks(points, 1)]
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(f"{across(a):.1f},{down(b):.1f}" for a, b in line)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across(a):.1f}" cy="{down(b):.1f}" r="3" fill="{colour}"/>' for a, b in line]
        parts.append(_text(WIDTH - RIGHT + 10, TOP + 18 * number, name, "start", colour))
    return "\n".join([*parts, "</svg>\n"])


def bar_chart(bars: Mapping[str, Sequence[float]], *, title: str) -> str:
    """A bar from 0 to the median of each, with a dot for every value."""
    height = TOP + 34 * len(bars) + 16
    scale = (WIDTH - LEFT - RIGHT - 40) / max(max(values) for values in bars.values())
    parts = _head(title, height)
    for number, (name, values) in enumerate(bars.items()):
        middle, top, colour = statistics.median(values), TOP + 34 * number, COLOURS[number % len(COLOURS)]
        parts.append(_text(LEFT + 32, top + 16, name, "end"))
        parts.append(f'<rect x="{LEFT + 40}" y="{top}" width="{middle * scale:.1f}" height="24" fill="{colour}"/>')
        dots = [f'<circle cx="{LEFT + 40 + value * scale:.1f}" cy="{top + 12}" r="3"/>' for value in values]
        parts += dots if len(values) > 1 else []
        parts.append(_text(LEFT + 50 + max(values) * scale, top + 16, _figure(middle), "start"))
    return "\n".join([*parts, "</svg>\n"])


def _head(title: str, height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"',
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(WIDTH / 2, 20, title, "middle"),
    ]


def _figure(value: float) -> str:
    """Three figures, thousands with commas: nobody reads 1.3e+03."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class _Axis:
    """A logarithmic axis from the smallest to the largest value."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low, self.high = math.log(min(values)), math.log(max(values))
        self.begin, self.end = begin, end

    def __call__(self, value: float) -> float:
        share = (math.log(value) - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.begin + share * (self.end - self.begin)


def _ticks(points: Points, axis: int) -> list[float]:
    values = sorted({point[axis] for point in points})
    if len(values) <= 8:
        return values
    low, high = math.floor(math.log10(values[0])), math.ceil(math.log10(values[-1]))
    return [10.0**power for power in range(low, high + 1) if values[0] <= 10.0**power <= values[-1]] or values[:1]


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
