"""A study as one HTML file: the winner first, charts, and a table whose rows lead to receipts.

The page runs no script and loads nothing, as a receipt.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from seatrial.job.units import format_seconds
from seatrial.receipt.formatting import figure
from seatrial.receipt.render.pages import OTHER, STATES, render_page
from seatrial.search import coordinates
from seatrial.search.columns import Column, best_in, columns
from seatrial.search.importance import FEWEST, importances
from seatrial.search.objective import Objective
from seatrial.search.opening import PLACE_FOLDER, place_of
from seatrial.search.plots import curves, history
from seatrial.search.search import Search
from seatrial.search.standing import best_of, in_words
from seatrial.search.trial import Trial
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.names import Names

PAGE, RESULTS = "index.html", "results.json"

#: While the search goes on the page is written anew at most this often.
_EVERY_S = 10.0

#: Trials whose lines go through the coordinates, the best ones.
_MOST_LINES = 200

#: A bar of the worst value still is one.
_SHORTEST = 4


@dataclass(frozen=True)
class Links:
    """What a run's ID stands between in an address; ``target``: the frame that links lead."""

    before: str = "../../runs/"
    after: str = "/receipt.html"
    target: str = ""


#: Of the page in the project: receipts beside it.
BESIDE = Links()


@dataclass(frozen=True)
class _Cell:
    """A number, and how long its bar is in percent: the best of the column is full, the worst a stub."""

    text: str
    percent: str
    best: bool


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
    """index.html and results.json without ``names``; the page's path. Raises DiskError, UntrustedPathError."""
    trials = search.study.shown()
    name = search.study.definition.name
    project = search.job.project
    with nofollow.folder(project, *PLACE_FOLDER, name, make=True):
        pass
    folder = place_of(project, name)
    told = [_clean(trial, names) for trial in trials]
    write_atomically(folder / RESULTS, json.dumps([trial.as_dict() for trial in told], indent=1).encode())
    write_atomically(folder / PAGE, page(search, told, names).encode())
    return folder / PAGE


def _clean(trial: Trial, names: Names) -> Trial:
    """Without names of people and machines in what a script or a person said."""
    end = trial.ending
    clean = {**vars(trial), "settings": {key: names.text(value) for key, value in trial.settings.items()}}
    if end is not None:
        metrics = {names.text(key): value for key, value in end.metrics.items()}
        clean["ending"] = type(end)(**{**vars(end), "outcome": names.text(end.outcome), "metrics": metrics})
    return Trial(**clean)


def page(search: Search, trials: Sequence[Trial], names: Names, links: Links = BESIDE) -> str:
    """The HTML."""
    definition, objective = search.study.definition, search.objective
    shown, best = columns(trials, objective), best_of(trials, objective)
    ranked = _ranked(trials, objective)
    ended, standing = search.study.get("ended") or search.study.get("problem"), search.study.standing()
    return render_page(
        "seatrial.search",
        "sweep.html",
        title=names.text(definition.title),
        study=definition.name,
        what=names.text(search.what()),
        standing=in_words(trials, objective, search.expected, None),
        chip=(standing, STATES[standing]),
        # A file that nobody writes any more goes on saying what it said.
        as_of=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        if standing == "running" and not links.target
        else None,
        problem=names.text(search.problem.message) if search.problem else ended,
        remarks=[names.text(line) for line in search.remarks(trials)],
        best=best,
        links=links,
        objective=objective,
        tiles=_tiles(best, objective),
        head=["trial", *search.space.names, *(column.title for column in shown), "outcome"],
        first_number=1 + len(search.space.names),
        rows=[_row(trial, trials, shown, search.space.names, best) for trial in ranked],
        **_charts(search, ranked, trials, best),
    )


def _charts(search: Search, ranked: Sequence[Trial], trials: Sequence[Trial], best: Trial | None) -> dict[str, Any]:
    """What the page draws; nothing of a study without an objective, or of which no trial has a value."""
    objective = search.objective
    if objective is None or all(trial.value is None for trial in trials):
        return {"charts": [], "coordinates": (), "shares": [], "fewest": FEWEST}
    drawn = ranked[:_MOST_LINES]
    widths = (coordinates.WIDTH, coordinates.NARROW)
    shares = importances(search.space, objective, trials)
    return {
        "charts": [chart for chart in (curves(ranked, objective, best), history(trials, objective)) if chart],
        # Every name in it is escaped there.
        "coordinates": [Markup(coordinates.draw(search.space, objective, drawn, best, width)) for width in widths],
        "shares": [(name, f"{100 * share:.0f}") for name, share in shares.items()],
        "fewest": FEWEST,
    }


def _ranked(trials: Sequence[Trial], objective: Objective | None) -> list[Trial]:
    """The best first, then those that did not come to their end; without an objective as they were asked for."""
    if objective is None:
        return list(trials)
    sign = 1 if objective.lower_is_better else -1

    def place(trial: Trial) -> tuple[bool, bool, float, int]:
        return trial.state != "done", trial.value is None, sign * (trial.value or 0.0), trial.number

    return sorted(trials, key=place)


def _tiles(best: Trial | None, objective: Objective | None) -> list[tuple[str, str]]:
    """Of the winner: its value, how long it took, its settings."""
    if best is None or objective is None or best.value is None:
        return []
    seconds = best.ending.measured.get("seconds") if best.ending else None
    tiles = [(objective.metric, figure(best.value)), *best.settings.items()]
    return tiles + ([("time", format_seconds(seconds))] if seconds is not None else [])


def _row(
    trial: Trial, trials: Sequence[Trial], shown: Sequence[Column], settings: Sequence[str], best: Trial | None
) -> dict[str, Any]:
    chip = STATES.get(trial.state, OTHER)
    return {
        "number": trial.number,
        "run": trial.run_id,
        "winner": trial is best,
        "settings": [trial.settings.get(name, "") for name in settings],
        "cells": [_cell(trial, trials, column) for column in shown],
        "outcome": trial.ending.outcome if trial.ending else "",
        "state": trial.state,
        "chip": chip,
    }


def _cell(trial: Trial, trials: Sequence[Trial], column: Column) -> _Cell:
    value = column.number(trial)
    if value is None:
        return _Cell("", "0", best=False)
    done = [number for one in trials if one.state == "done" and (number := column.number(one)) is not None]
    low, high = min(done, default=value), max(done, default=value)
    share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 1.0
    if column.lower_is_better and high > low:
        share = 1 - share
    percent = _SHORTEST + (100 - _SHORTEST) * share
    return _Cell(f"{value:.4g}", f"{percent:.0f}", best=best_in(trials, column) is trial)
