"""How a study stands, in one line for the terminal and for its table: best so far, running, pruned, time left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from seatrial.job.units import format_seconds
from seatrial.search.objective import Objective
from seatrial.search.trial import State, Trial


def best_of(trials: Sequence[Trial], objective: Objective | None) -> Trial | None:
    """The best trial that ended by itself; the first of equals."""
    known = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    if objective is None or not known:
        return None
    sign = 1 if objective.lower_is_better else -1
    return min(known, key=lambda trial: sign * (trial.value or 0.0))


def in_words(trials: Sequence[Trial], objective: Objective | None, most: int | None, left_s: float | None) -> str:
    """``7 of 40 trials; best accuracy 0.981 (lr=0.003 batch=64); 2 running, 3 pruned, 1 failed; 4 min left``."""
    counted = Counter(trial.state for trial in trials)
    ended = sum(trial.ending is not None for trial in trials)
    of = f" of {most}" if most is not None else ""
    parts = [f"{ended}{of} trial{'s' * ((most or ended) != 1)}"]
    best = best_of(trials, objective)
    if best is not None and objective is not None:
        parts.append(f"best {objective.metric} {best.value:.4g} ({best.label})")
    told: tuple[State, ...] = ("running", "not followed", "pruned", "failed", "stopped")
    states = [f"{counted[state]} {state}" for state in told if counted[state]]
    parts += [", ".join(states)] if states else []
    parts += [f"about {format_seconds(max(1.0, round(left_s)))} left"] if left_s is not None else []
    return "; ".join(parts)


def seconds_left(trials: Sequence[Trial], most: int | None, parallel: int, ends_at: float | None) -> float | None:
    """Until all trials have ended, by the mean of those that have, or until the budget is used up; None: nobody knows.

    Args:
        ends_at: as in Search.
    """
    spans = [
        trial.ended_at - trial.begun_at
        for trial in trials
        if trial.ending is not None and trial.begun_at is not None and trial.ended_at is not None
    ]
    budget_s = None if ends_at is None else max(0.0, ends_at - time.monotonic())
    if not spans or most is None:
        return budget_s
    mean_s = sum(spans) / len(spans)
    spent_s = [time.time() - trial.begun_at for trial in trials if trial.state == "running" and trial.begun_at]
    waiting = sum(trial.state == "waiting" for trial in trials)
    to_do_s = mean_s * (max(0, most - len(trials)) + waiting) + sum(max(0.0, mean_s - spent) for spent in spent_s)
    by_trials_s = to_do_s / max(1, parallel)
    return by_trials_s if budget_s is None else min(by_trials_s, budget_s)
