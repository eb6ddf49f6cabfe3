"""Series: one line of a plot, thinned so that a receipt of a million steps stays small and still looks right."""

from __future__ import annotations

from collections.abc import Sequence

#: Points kept of one series: more than the pixels a plot has for them (a plot is some 340 CSS pixels wide).
MAX_POINTS = 400

Point = tuple[float, float]


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """At most ``limit`` of the points, in order: the lowest and the highest of each of limit / 2 equal stretches.

    Spikes survive, which a mean or every n-th point would lose; the first and the last point always stay.
    """
    if len(points) <= limit:
        return list(points)
    inner = points[1:-1]
    stretches = (limit - 2) // 2
    kept = [points[0]]
    for index in range(stretches):
        stretch = range(index * len(inner) // stretches, (index + 1) * len(inner) // stretches)
        low = min(stretch, key=lambda i: inner[i][1])
        high = max(stretch, key=lambda i: inner[i][1])
        kept += [inner[i] for i in sorted({low, high})]
    kept.append(points[-1])
    return kept


def significant(value: float) -> float:
    """Rounded to six significant digits: enough for a plot, half the bytes."""
    return float(f"{value:.6g}")
