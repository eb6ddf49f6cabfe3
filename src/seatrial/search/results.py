"""Write the results of a study: columns, the line of its status, the page with a chart and a table."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from seatrial.common.paired import mean
from seatrial.job.units import format_seconds
from seatrial.receipt.reported import PHASES
from seatrial.receipt.section import Line, Plot
from seatrial.receipt.sections.measured import direction
from seatrial.receipt.values import figure, in_words
from seatrial.search.request import Objective
from seatrial.search.search import PLACE_FOLDER, Search
from seatrial.search.trial import State, Trial
from seatrial.system import nofollow
from seatrial.system.names import Names
from seatrial.system.text import first_of

PAGE, RESULTS = "index.html", "results.json"
#: Metrics shown at most: a script may report dozens.
MAX_METRICS = 8
#: A worse trial is not drawn if it is further from the median than so many times the median distance.
_DIVERGED = 100.0
#: While the search goes on the page is written anew at most this often.
_EVERY_S = 10.0


class Column(NamedTuple):
    """One number of each trial; ``judged``: a metric of the script whose name shows which way is better."""

    title: str
    number: Callable[[Trial], float | None]
    lower_is_better: bool
    judged: bool = False


def columns(trials: Sequence[Trial], objective: Objective | None) -> list[Column]:
    """Return the columns that any trial has a number for: the objective, measurements, metrics of the script."""
    percent = {name for trial in trials if trial.ending for name in trial.ending.percent}
    sign = " %" if objective and any(phase + objective.metric in percent for phase in PHASES) else ""
    made = [Column(objective.metric + sign, lambda trial: trial.value, objective.lower_is_better)] if objective else []
    made += [
        Column("seconds", _number("measured", "seconds"), True),
        Column("images/s", _number("measured", "images_per_s"), False),
        Column("GPU %", _number("measured", "utilization_pct"), False),
        Column("energy J", _number("measured", "energy_j"), True),
    ]
    names = list(dict.fromkeys(name for trial in trials if trial.ending for name in trial.ending.metrics))
    left_out = {"images_per_s", "epoch"} | ({objective.metric} if objective else set())
    if objective and len(trials) > 1:  # the objective under the name that was printed
        ended = [trial for trial in trials if trial.ending]
        alike = [name for name in names if objective.metric in name]
        left_out |= {name for name in alike if all(_number("metrics", name)(each) == each.value for each in ended)}
    named = [name for name in names if name not in left_out]
    named.sort(key=lambda name: (not direction(name), not name.startswith(("val", "test", "eval"))))
    for name in named[:MAX_METRICS]:
        title, better = in_words(name), direction(name)
        less = better < 0 or title.endswith("(s)")
        made.append(Column(title + " %" * (name in percent), _number("metrics", name), less, judged=better != 0))
    return [column for column in made if any(column.number(trial) is not None for trial in trials)]


def _number(part: Literal["measured", "metrics"], name: str) -> Callable[[Trial], float | None]:
    return lambda trial: getattr(trial.ending, part).get(name) if trial.ending else None


def best_in(trials: Sequence[Trial], column: Column) -> Trial | None:
    """Return the trial that is best in a column, of those that ended well; None if there is nothing to compare."""
    known = [trial for trial in trials if trial.state == "done" and column.number(trial) is not None]
    choose = min if column.lower_is_better else max
    return choose(known, key=lambda trial: column.number(trial) or 0.0) if len(known) > 1 else None


def best_of(trials: Sequence[Trial], objective: Objective | None) -> Trial | None:
    """Return the best trial that ended well; the first of equals. Without an objective, where all metrics agree."""
    if objective is None:
        winners = [best_in(trials, column) for column in columns(trials, None) if column.judged]
        return winners[0] if winners and all(each is winners[0] for each in winners) else None
    first = next(iter(_ranked(trials, objective)), None)
    return first if first is not None and first.state == "done" and first.value is not None else None


def close_second(trials: Sequence[Trial], objective: Objective | None) -> str | None:
    """Return a sentence where the next best trial cannot be distinguished from the best, by the second half of as many
    reports of each; None where it can, or where that is unknown."""
    ended = [trial for trial in _ranked(trials, objective) if trial.state == "done" and trial.value is not None]
    if objective is None or len(ended) < 2:
        return None
    best, other = ended[:2]
    pairs = list(zip(best.reports, other.reports, strict=False))
    differences = [one.value - two.value for one, two in pairs[len(pairs) // 2 :]]
    if len(best.reports) != len(other.reports) or len(differences) < 3:
        differences = [(best.value or 0.0) - (other.value or 0.0)]  # a single value does not show how it varies
    off = mean(differences)
    if off.low > 0 or off.high < 0:
        return None
    if off.low == off.high == 0:
        return f"trial {other.number} ({other.label}) has the same {objective.metric}"
    found = f"{objective.metric} differs by {off.low:.2g} to {off.high:.2g}; more seeds of both would decide"
    return f"trial {other.number} ({other.label}) is not distinguishable from the best: {found}"


def summary_line(trials: Sequence[Trial], objective: Objective | None, most: int | None, left_s: float | None) -> str:
    """Return ``7 of 40 trials; best accuracy 0.981 (lr=0.003 batch=64); 2 running, 1 failed; 4 min left``."""
    counted = Counter(trial.state for trial in trials)
    ended = sum(trial.ending is not None for trial in trials)
    of = f" of {most}" if most is not None else ""
    parts = [f"{ended}{of} trial{'s' * ((most or ended) != 1)}"]
    best = best_of(trials, objective)
    if best is not None and objective is not None:
        parts.append(f"best {best.reported(objective.metric)} ({best.label})")
    elif best is not None:
        parts.append(f"best in every metric: trial {best.number} ({best.label})")
    listed: tuple[State, ...] = ("running", "not followed", "pruned", "failed", "stopped")
    states = [f"{counted[state]} {state}" for state in listed if counted[state]]
    parts += [", ".join(states)] if states else []
    parts += [f"about {format_seconds(max(1.0, round(left_s)))} left"] if left_s is not None else []
    return "; ".join(parts)


def seconds_left(trials: Sequence[Trial], most: int | None, parallel: int, ends_at: float | None) -> float | None:
    """Return the time until all trials end, by the mean of ended ones, or until ``ends_at`` (see Search); else None."""
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


def refresh(search: Search, names: Names) -> None:
    """Write the page if it is time for that and a trial has ended since."""
    now_s = time.monotonic()
    if now_s - search.page_s < _EVERY_S:
        return
    search.page_s = now_s
    ended = sum(trial.ending is not None for trial in search.study.trials())
    if ended != search.page_trials:
        search.page_trials = ended
        write(search, names)


def write(search: Search, names: Names) -> Path:
    """Write index.html and results.json without ``names``; return the page. Raises DiskError, UntrustedPathError."""
    project, place = search.job.project, (*PLACE_FOLDER, search.study.definition.name)
    trials = [_clean(trial, names) for trial in search.study.shown()]
    results = json.dumps([trial.as_dict() for trial in trials], indent=1)
    nofollow.write_inside(project, *place, RESULTS, data=results.encode())
    return nofollow.write_inside(project, *place, PAGE, data=page(search, trials, names).encode())


def _clean(trial: Trial, names: Names) -> Trial:
    """Return the trial without names of people and machines in what a script or a person wrote."""
    if (end := trial.ending) is not None:
        metrics = {names.text(key): value for key, value in end.metrics.items()}
        end = replace(end, outcome=names.text(end.outcome), metrics=metrics)
    return replace(trial, settings={key: names.text(value) for key, value in trial.settings.items()}, ending=end)


def page(search: Search, trials: Sequence[Trial], names: Names) -> str:
    """Return the HTML page, which runs no script and loads nothing, as a receipt."""
    from seatrial.receipt.render.pages import STATES, render_page

    definition, objective = search.study.definition, search.objective
    shown, best = columns(trials, objective), best_of(trials, objective)
    ended, standing = search.study.get("ended") or search.study.get("problem"), search.study.standing()
    return render_page(
        "seatrial.search",
        "sweep.html",
        title=names.text(definition.title),
        study=definition.name,
        what=names.text(search.summary()),
        standing=summary_line(trials, objective, search.expected, None),
        chip=(standing, STATES[standing]),
        as_of=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()) if standing == "running" else None,
        problem=names.text(search.problem.message) if search.problem else ended,
        remark=names.text(second) if (second := close_second(trials, objective)) else None,
        best=best,
        objective=objective,
        tiles=_tiles(best, objective),
        head=["trial", *search.space.names, *(column.title for column in shown), "outcome"],
        rows=[_row(trial, trials, shown, search.space.names, best) for trial in _ranked(trials, objective)],
        chart=None if objective is None else history(trials, objective),
    )


def history(trials: Sequence[Trial], objective: Objective) -> tuple[Plot, tuple[str, ...]] | None:
    """Return the plot of each trial's value and of the best so far, with its lines' classes; None for a single one.

    Trials that diverged are named, not drawn: the others would be one flat line.
    """
    ended = [trial for trial in trials if trial.value is not None and trial.ending is not None]
    middle = median([trial.value or 0.0 for trial in ended] or [0.0])
    spread = _DIVERGED * median([abs((trial.value or 0.0) - middle) for trial in ended] or [0.0])
    far = [each for each in ended if spread and abs((each.value or 0.0) - middle) > spread]
    far = [each for each in far if not objective.is_better(each.value or 0.0, middle)]
    ended = [each for each in ended if each not in far]
    done = [trial for trial in ended if trial.state == "done"]
    if len(ended) < 2:
        return None
    steps: list[tuple[float, float]] = []
    for trial in done:
        if not steps or objective.is_better(trial.value or 0.0, steps[-1][1]):
            steps += [(float(trial.number), steps[-1][1])] if steps else []
            steps.append((float(trial.number), trial.value or 0.0))
    lines = [
        ("best so far", "line1 plain", [*steps, (float(ended[-1].number), steps[-1][1])] if steps else []),
        ("ended", "line0 dots", _points(done)),
        ("pruned or stopped", "line8 dots open", _points([trial for trial in ended if trial.state != "done"])),
    ]
    drawn = [(name, style, points) for name, style, points in lines if points]
    title = f"{objective.metric} by trial" + (f"; diverged: {first_of(each.number for each in far)}" if far else "")
    every = tuple(Line(name=name, points=tuple(points)) for name, _, points in drawn)
    plot = Plot(id="history", title=title, unit="", x="trial", lines=every)
    return plot, tuple(style for _, style, _ in drawn)


def _points(trials: Sequence[Trial]) -> list[tuple[float, float]]:
    return [(float(trial.number), trial.value) for trial in trials if trial.value is not None]


def _ranked(trials: Sequence[Trial], objective: Objective | None) -> list[Trial]:
    """Return the best first, then those that did not end well; without an objective by number."""
    if objective is None:
        return list(trials)
    sign = 1 if objective.lower_is_better else -1

    def place(trial: Trial) -> tuple[bool, bool, float, int]:
        return trial.state != "done", trial.value is None, sign * (trial.value or 0.0), trial.number

    return sorted(trials, key=place)


def _tiles(best: Trial | None, objective: Objective | None) -> list[tuple[str, str]]:
    """Return the winner's value, settings and time."""
    if best is None or objective is None or best.value is None:
        return []
    seconds = best.ending.measured.get("seconds") if best.ending else None
    sign = " %" * best.reported(objective.metric).endswith("%")
    tiles = [(objective.metric, figure(best.value) + sign), *best.settings.items()]
    return tiles + ([("time", format_seconds(seconds))] if seconds is not None else [])


def _row(
    trial: Trial, trials: Sequence[Trial], shown: Sequence[Column], settings: Sequence[str], best: Trial | None
) -> dict[str, Any]:
    from seatrial.receipt.render.pages import OTHER, STATES

    return {
        "number": trial.number,
        "run": trial.run_id,
        "winner": trial is best,
        "settings": [trial.settings.get(name, "") for name in settings],
        "cells": [_cell(trial, trials, column) for column in shown],
        "outcome": trial.ending.outcome if trial.ending else "",
        "state": trial.state,
        "chip": STATES.get(trial.state, OTHER),
    }


def _cell(trial: Trial, trials: Sequence[Trial], column: Column) -> SimpleNamespace:
    """Return a number and the length of its bar in percent: the best is full, one of half its worth half."""
    if (value := column.number(trial)) is None:
        return SimpleNamespace(text="", best=False)
    done = [number for one in trials if one.state == "done" and (number := column.number(one)) is not None]
    best = (min if column.lower_is_better else max)(done, default=value)
    less, more = (best, value) if column.lower_is_better else (value, best)
    share = less / more if less > 0 < more else float(less == more)  # from zero, so that 5 % are 5 % of a bar
    percent = f"{100 * min(1.0, share) * (trial.state != 'failed'):.0f}"
    return SimpleNamespace(text=f"{value:.4g}", percent=percent, best=best_in(trials, column) is trial)
