"""The numbers of a study's table: the objective first, then what was measured, then what scripts reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seatrial.search.objective import Objective
from seatrial.search.trial import Trial

#: Metrics shown at most: a script may report dozens.
MAX_METRICS = 8


@dataclass(frozen=True)
class Column:
    """One number of each trial."""

    title: str
    number: Callable[[Trial], float | None]
    lower_is_better: bool


def columns(trials: Sequence[Trial], objective: Objective | None) -> list[Column]:
    """Those that some trial has a number for."""
    made = [Column(objective.metric, lambda trial: trial.value, objective.lower_is_better)] if objective else []
    made += [
        Column("seconds", _measured("seconds"), True),
        Column("images/s", _measured("images_per_s"), False),
        Column("GPU %", _measured("utilization_pct"), False),
        Column("energy J", _measured("energy_j"), True),
    ]
    names = list(dict.fromkeys(name for trial in trials if trial.ending for name in trial.ending.metrics))
    left_out = ("images_per_s", "epoch", objective.metric if objective else "")
    shown = [name for name in names if name not in left_out][:MAX_METRICS]
    made += [Column(name, _metric(name), "loss" in name or "error" in name) for name in shown]
    return [column for column in made if any(column.number(trial) is not None for trial in trials)]


def _measured(name: str) -> Callable[[Trial], float | None]:
    return lambda trial: trial.ending.measured.get(name) if trial.ending else None


def _metric(name: str) -> Callable[[Trial], float | None]:
    return lambda trial: trial.ending.metrics.get(name) if trial.ending else None


def best_in(trials: Sequence[Trial], column: Column) -> Trial | None:
    """The trial that is best in a column, of those that ended by themselves; None where there is nothing to compare."""
    known = [trial for trial in trials if trial.state == "done" and column.number(trial) is not None]
    choose = min if column.lower_is_better else max
    return choose(known, key=lambda trial: column.number(trial) or 0.0) if len(known) > 1 else None
