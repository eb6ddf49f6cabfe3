"""Parallel coordinates as SVG: an axis for each setting and one for the metric, a line for each trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from seatrial.receipt.formatting import figure
from seatrial.search.objective import Objective
from seatrial.search.space import Choice, Range, Space
from seatrial.search.trial import Trial

#: User units; the page scales the picture to its column.
WIDTH, NARROW, HEIGHT = 784, 376, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 14, 36

#: Letters of a tick or of an axis' name that are shown.
_LETTERS = 12


class _Axis(NamedTuple):
    """Values are text, as a script got them; ``choices``: in their order, None of numbers."""

    name: str
    choices: tuple[str, ...] | None
    log: bool
    low: float
    high: float

    def place(self, text: str) -> float | None:
        """0 at the bottom, 1 at the top; None: not on this axis."""
        if self.choices is not None:
            if text not in self.choices:
                return None
            return self.choices.index(text) / (len(self.choices) - 1) if len(self.choices) > 1 else 0.5
        value = _number(text, log=self.log)
        if value is None:
            return None
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        if self.choices is not None:
            return [(self.place(text) or 0.0, text) for text in self.choices]
        back = math.exp if self.log else float
        if self.high <= self.low:
            return [(0.5, f"{back(self.low):.3g}")]
        return [(share, f"{back(self.low + share * (self.high - self.low)):.3g}") for share in (0.0, 0.5, 1.0)]


def draw(space: Space, objective: Objective, trials: Sequence[Trial], best: Trial | None, width: int = WIDTH) -> str:
    """One ``<svg>`` of the trials that have a value, the best one on top. Every name in it is escaped."""
    shown = [trial for trial in trials if trial.value is not None]
    axes = [*(_axis(dimension, shown) for dimension in space.dimensions), _metric_axis(objective, shown)]
    xs = [_LEFT + place * (width - _LEFT - _RIGHT) / max(1, len(axes) - 1) for place in range(len(axes))]
    told = escape(f"each trial across {', '.join(axis.name for axis in axes)}")
    parts = [
        f'<svg class="coordinates" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{told}">',
        *(f'<path class="grid" d="M{x:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>' for x in xs),
    ]
    ends_with_best = sorted(shown, key=lambda trial: (trial is best, trial.state == "done"))
    parts += [_line(trial, axes, xs, trial is best) for trial in ends_with_best]
    parts += [_scale(axis, x, place == len(axes) - 1) for place, (axis, x) in enumerate(zip(axes, xs, strict=True))]
    return "".join([*parts, "</svg>"])


def _axis(dimension: Choice | Range, trials: Sequence[Trial]) -> _Axis:
    if isinstance(dimension, Choice):
        return _Axis(dimension.name, dimension.values, False, 0.0, 0.0)
    texts = [trial.settings.get(dimension.name, "") for trial in trials]
    values = [value for text in texts if (value := _number(text, log=dimension.log)) is not None]
    return _Axis(dimension.name, None, dimension.log, min(values, default=0.0), max(values, default=0.0))


def _metric_axis(objective: Objective, trials: Sequence[Trial]) -> _Axis:
    values = [trial.value for trial in trials if trial.value is not None]
    return _Axis(objective.metric, None, False, min(values, default=0.0), max(values, default=0.0))


def _number(text: str, *, log: bool) -> float | None:
    try:
        value = float(text)
        return math.log(value) if log else value
    except ValueError:
        return None


def _at(share: float) -> float:
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _scale(axis: _Axis, x: float, last: bool) -> str:
    parts = [
        f'<text x="{x - 7:.1f}" y="{_at(share) + 3.5:.1f}" text-anchor="end">{_cut(text)}</text>'
        for share, text in axis.ticks()
    ]
    anchor, at = ("end", x + _RIGHT - 2) if last else ("middle", x)
    parts.append(f'<text x="{at:.1f}" y="{HEIGHT - 10}" text-anchor="{anchor}">{_cut(axis.name)}</text>')
    return "".join(parts)


def _line(trial: Trial, axes: Sequence[_Axis], xs: Sequence[float], best: bool) -> str:
    values = [*(trial.settings.get(axis.name, "") for axis in axes[:-1]), repr(trial.value)]
    places = [(x, axis.place(text)) for axis, x, text in zip(axes, xs, values, strict=True)]
    points = [f"{x:.1f} {_at(share):.1f}" for x, share in places if share is not None]
    style = "line1 bold" if best else f"{'line0' if trial.state == 'done' else 'line8'} faint"
    told = f"trial {trial.number}: {axes[-1].name} {figure(trial.value or 0.0)}, {trial.label}"
    return f'<path class="curve {style}" d="M{"L".join(points)}"><title>{escape(told)}</title></path>'


def _cut(text: str) -> str:
    return escape(text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…")
