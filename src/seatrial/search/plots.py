"""The charts of a study: what each trial reported, and how the best value came about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seatrial.receipt.reported import thin
from seatrial.receipt.section import Line, Plot
from seatrial.search.objective import Objective
from seatrial.search.trial import Trial

#: Trials whose curves are drawn, the best ones: more cannot be told apart.
MOST_CURVES = 60

#: Points of one trial's curve.
_MOST_POINTS = 120


class Chart(NamedTuple):
    """A plot and the classes of its lines; ``legend``: (classes, words) of what is to be told apart."""

    plot: Plot
    styles: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]


def curves(trials: Sequence[Trial], objective: Objective, best: Trial | None) -> Chart | None:
    """What each trial reported; the best one last, so that it lies on top. ``trials``: the best first."""
    shown = [trial for trial in trials if len(trial.reports) > 1 or (trial is best and trial.reports)][:MOST_CURVES]
    shown = sorted(shown, key=lambda trial: (trial is best, trial.state == "done"))
    if not any(len(trial.reports) > 1 for trial in shown):
        return None
    lines = tuple(
        Line(
            name=f"trial {trial.number}: {trial.label}",
            points=tuple(thin([(float(report.step), report.value) for report in trial.reports], _MOST_POINTS)),
        )
        for trial in shown
    )
    styles = tuple(_style(trial, best) for trial in shown)
    told = [("line1", f"trial {best.number}, the winner")] if best is not None else []
    told += [("line0", "others")] if any(style.startswith("line0") for style in styles) else []
    told += [("line8", "pruned, stopped, or still running")] if any(s.startswith("line8") for s in styles) else []
    title = f"{objective.metric} as each trial reported it"
    return Chart(Plot(id="curves", title=title, unit="", x="line", lines=lines), styles, tuple(told))


def history(trials: Sequence[Trial], objective: Objective) -> Chart | None:
    """Each trial's value in their order, and the best so far; None of a single one."""
    ended = [trial for trial in trials if trial.value is not None and trial.ending is not None]
    done = [trial for trial in ended if trial.state == "done"]
    if len(ended) < 2:
        return None
    steps: list[tuple[float, float]] = []
    for trial in done:
        assert trial.value is not None
        if not steps or objective.is_better(trial.value, steps[-1][1]):
            steps += [(float(trial.number), steps[-1][1])] if steps else []
            steps.append((float(trial.number), trial.value))
    lines, styles, told = [], [], []
    for name, style, points in (
        ("best so far", "line1 plain", [*steps, (float(ended[-1].number), steps[-1][1])] if steps else []),
        ("ended", "line0 dots", _points(done)),
        ("pruned or stopped", "line8 dots open", _points([trial for trial in ended if trial.state != "done"])),
    ):
        if points:
            lines.append(Line(name=name, points=tuple(points)))
            styles.append(style)
            told.append((style.partition(" ")[0], name))
    title = f"{objective.metric} by trial"
    return Chart(Plot(id="history", title=title, unit="", x="trial", lines=tuple(lines)), tuple(styles), tuple(told))


def _points(trials: Sequence[Trial]) -> list[tuple[float, float]]:
    return [(float(trial.number), trial.value) for trial in trials if trial.value is not None]


def _style(trial: Trial, best: Trial | None) -> str:
    if trial is best:
        return "line1 bold"
    return "line0 faint" if trial.state == "done" else "line8 faint"
