"""The numbers that the target reported itself, one series a name, thinned to what a receipt keeps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any, Literal

from seatrial.receipt.values import clean, number, text

Point = tuple[float, float]
#: Keys of positions, and of counts that throughput is made of: not plotted.
POSITION_KEYS = frozenset({"t", "step", "epoch", "images", "rank", "node", "_seq"})
#: Series kept; a script that makes up names for ever must not make the receipt grow for ever.
MAX_SERIES = 32
#: Points kept of a series: more than the pixels a plot has for them (a plot is some 340 CSS pixels wide).
MAX_POINTS = 400
#: Prefixes by which a metric's plain name is found: data that was not trained on comes first.
PHASES = ("", "test_", "val_", "valid_", "validation_", "eval_", "train_")
#: The same for the one loss and the one accuracy that are shown first.
_HEADLINE_PHASES = ("val_", "valid_", "test_", "eval_", "", "end_", "train_")
_LOSSES = ("loss", "step_loss", "nll", "rmse", "mse", "mae", "perplexity", "ppl", "error")
_ACCURACIES = ("accuracy", "acc", "f1", "auc", "map", "miou", "iou", "bleu", "psnr", "r2", "score", "reward")

Axis = Literal["step", "epoch", "line"]


@dataclass
class ReportedSteps:
    """The target's step lines.

    Attributes:
        series: name → [(x, y)]. A line with ``"phase": "test"`` reports ``accuracy`` as ``test_accuracy``.
        axis: what x counts: ``step``, ``epoch``, or ``line`` if the script reports neither.
        lines: step lines read. dropped: names left out because there were more than MAX_SERIES.
        counted: (seconds since the first event, images) of training lines that count images.
    """

    series: dict[str, list[Point]] = field(default_factory=dict)
    axis: Axis = "line"
    lines: int = 0
    dropped: set[str] = field(default_factory=set)
    counted: list[Point] = field(default_factory=list)

    def find(self, name: str) -> tuple[str, list[Point]] | None:
        """Return the series for a metric's name, by PHASES, or None if the target never reported it."""
        found = next((phase + name for phase in PHASES if phase + name in self.series), None)
        return None if found is None else (found, self.series[found])

    @property
    def images(self) -> int | None:
        """Return the images trained on, or None if the target does not count them."""
        return int(sum(count for _, count in self.counted)) if self.counted else None

    @property
    def images_per_s(self) -> float | None:
        """Return images/s after the first line that counts them; of one line, the median of the script's own rates."""
        if len(self.counted) > 1 and (seconds := self.counted[-1][0] - self.counted[0][0]) > 0:
            return sum(count for _, count in self.counted[1:]) / seconds
        reported = self.series.get("train_images_per_s") or self.series.get("images_per_s")
        return median(y for _, y in reported) if reported else None


def read_steps(lines: Iterable[tuple[float, Mapping[str, Any]]]) -> ReportedSteps:
    """Read (seconds since the first event, step event) pairs.

    Ranks other than 0 add images but no points: all report one curve. A framework's lines (``by``) follow the script's.
    """
    lines = list(lines)
    by_framework = _framework_leads([event for _, event in lines])
    leading = [event for _, event in lines if ("by" in event) is by_framework]
    known: tuple[Axis, ...] = ("step", "epoch")
    axis: Axis = next((key for key in known if any(number(e.get(key)) is not None for e in leading)), "line")
    steps = ReportedSteps(axis=axis, lines=len(lines))
    x = previous = offset = 0.0
    for at_s, event in lines:
        own = number(event.get(axis)) if axis != "line" else previous + 1
        if own is not None and ("by" in event) is by_framework:
            if own < previous / 2:  # counted anew each epoch; a little less is only a late line
                offset += previous
            previous, x = own, own + offset
        phase = text(event.get("phase")) or ""
        images = number(event.get("images"))
        if images is not None and images >= 0 and phase in ("", "train"):
            steps.counted.append((at_s, images))
        if not number(event.get("rank")):
            _add_points(steps, event, phase, x)
    return steps


def _framework_leads(events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether x is the framework's, which reports more epochs than the script writes lines."""
    of_framework = [event for event in events if "by" in event]
    epochs = {epoch for event in of_framework if (epoch := number(event.get("epoch"))) is not None}
    written = len(events) - len(of_framework)
    return not written or written < len(epochs)


def _add_points(steps: ReportedSteps, event: Mapping[str, Any], phase: str, x: float) -> None:
    for key, value in event.items():
        y = number(value)
        if y is None or key in POSITION_KEYS:
            continue
        name = _name(key, phase)
        if name not in steps.series and len(steps.series) >= MAX_SERIES:
            steps.dropped.add(name)
        else:
            steps.series.setdefault(name, []).append((x, y))


@lru_cache(maxsize=1024)  # the same few names on every line
def _name(key: str, phase: str) -> str:
    return clean(key if not phase or key.startswith(phase + "_") else f"{phase}_{key}")[:80]


def _phase_of(name: str) -> int:
    """Return the place of ``train-rmse``'s or ``val/loss``'s phase in _HEADLINE_PHASES."""
    words = {f"{word}_" for word in re.findall("[a-z]+", name.lower())}
    return next((at for at, phase in enumerate(_HEADLINE_PHASES) if phase in words), _HEADLINE_PHASES.index(""))


def headline_metrics(names: Collection[str]) -> tuple[str, str]:
    """Return the names of one loss and of one accuracy, or of ``lm_loss`` and ``test_acc@1``; "" if there is none."""

    by_phase = sorted(names, key=_phase_of)

    def first(wanted: Sequence[str]) -> str:
        candidates = (f"{phase}{name}" for name in wanted for phase in _HEADLINE_PHASES)
        others = (name for word in wanted for name in by_phase if re.search(rf"(?<![a-z]){word}(?![a-z])", name, re.I))
        return next((name for name in candidates if name in names), next(others, ""))

    return first(_LOSSES), first(_ACCURACIES)


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most ``limit`` points: the lowest and the highest of each of limit / 2 equal stretches.

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
    """Round to six significant digits: enough for a plot, half the bytes."""
    return float(f"{value:.6g}")
