"""A study as one HTML file: how it stands, charts, and a table whose cells are bars and whose rows lead to receipts.

The charts are drawn by plotly.js, which is taken from the installed plotly package into the page, so that the page can
be sent to somebody. It may run that script and ours, known by their digests, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from seatrial.receipt.look.pages import render_page
from seatrial.search.columns import Column, best_in, columns
from seatrial.search.importance import FEWEST, importances
from seatrial.search.opening import PLACE_FOLDER, place_of
from seatrial.search.search import Search
from seatrial.search.space import Range
from seatrial.search.standing import best_of, in_words
from seatrial.search.trial import Trial
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.names import Names

PAGE, RESULTS = "index.html", "results.json"

#: While the search goes on the page is written anew at most this often; it has 5 MB with plotly.js in it.
_EVERY_S = 10.0

_BADGES = {"done": "pass", "pruned": "none", "failed": "fail", "stopped": "warning"}


@dataclass(frozen=True)
class _Cell:
    """A number, and how long its bar is, in percent of the longest of the column."""

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
    trials = search.study.trials()
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


def page(search: Search, trials: Sequence[Trial], names: Names) -> str:
    """The HTML."""
    definition, objective = search.study.definition, search.objective
    plotly = _plotly() if objective is not None else None
    shown = columns(trials, objective)
    scripts = [plotly, _charts()] if plotly is not None else []
    return render_page(
        "seatrial.search",
        "sweep.html",
        policy=_policy(scripts),
        title=names.text(definition.title),
        study=definition.name,
        what=names.text(search.what()),
        standing=in_words(trials, objective, search.expected, None),
        problem=names.text(search.problem.message) if search.problem else search.study.get("ended"),
        remarks=[names.text(line) for line in search.remarks(trials)],
        best=best_of(trials, objective),
        objective=objective,
        head=["trial", *search.space.names, *(column.title for column in shown), "outcome"],
        rows=[_row(trial, trials, shown, search.space.names) for trial in trials],
        scripts=[Markup(script) for script in scripts],  # from packages, never a value
        data=_data(search, trials) if plotly is not None else {},
        charts=plotly is not None,
        fewest=FEWEST,
    )


def _row(trial: Trial, trials: Sequence[Trial], shown: Sequence[Column], settings: Sequence[str]) -> dict[str, Any]:
    return {
        "number": trial.number,
        "run": trial.run_id,
        "settings": [trial.settings.get(name, "") for name in settings],
        "cells": [_cell(trial, trials, column) for column in shown],
        "outcome": trial.ending.outcome if trial.ending else "",
        "state": trial.state,
        "badge": _BADGES.get(trial.state, "none"),
    }


def _cell(trial: Trial, trials: Sequence[Trial], column: Column) -> _Cell:
    value = column.number(trial)
    if value is None:
        return _Cell("", "0", best=False)
    top = max((abs(column.number(one) or 0.0) for one in trials), default=0.0) or 1.0
    return _Cell(f"{value:.4g}", f"{100 * abs(value) / top:.0f}", best=best_in(trials, column) is trial)


def _data(search: Search, trials: Sequence[Trial]) -> dict[str, Any]:
    """What the charts are drawn from."""
    objective = search.objective
    assert objective is not None
    return {
        "metric": objective.metric,
        "lower": objective.lower_is_better,
        "axes": [
            {
                "name": dimension.name,
                "log": isinstance(dimension, Range) and dimension.log,
                "values": None if isinstance(dimension, Range) else list(dimension.values),
            }
            for dimension in search.space.dimensions
        ],
        "trials": [
            {
                "number": trial.number,
                "settings": [trial.settings.get(name) for name in search.space.names],
                "state": trial.state,
                "value": trial.value,
                "reports": [[report.step, report.value] for report in trial.reports],
            }
            for trial in trials
            if trial.value is not None
        ],
        "importance": list(importances(search.space, objective, trials).items()),
    }


def _policy(scripts: Sequence[str]) -> str:
    """What the page may do: these scripts, styles, and nothing from anywhere."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = "".join(f" 'sha256-{digest}'" for digest in digests)
    script_src = f"script-src{allowed}; " if scripts else ""
    return f"default-src 'none'; {script_src}style-src 'unsafe-inline'; img-src data:"


@lru_cache(maxsize=1)
def _plotly() -> str | None:
    """plotly.js out of the installed Python package, found without importing it; None where it is not installed."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    return None


@lru_cache(maxsize=1)
def _charts() -> str:
    return resources.files("seatrial.search").joinpath("charts.js").read_text(encoding="utf-8")
