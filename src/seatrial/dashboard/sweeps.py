"""Sweeps of the projects: how each stands, and its page with links to the runs as the dashboard shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.dashboard.projects import Projects
from seatrial.errors import RunNotFoundError, SeatrialError
from seatrial.receipt.formatting import figure
from seatrial.receipt.render.pages import STATES
from seatrial.runs.store import RunStore
from seatrial.search.opening import find_study, looked_at, studies_of
from seatrial.search.page import Links, page
from seatrial.search.standing import best_of, in_words
from seatrial.search.study import Study
from seatrial.system.names import Names

#: Sweeps in the list, the newest.
_MOST = 100

#: What its links lead to: views of the page around the frame.
_LINKS = Links("/#/runs/", "", target="_top")


def sweeps(projects: Projects) -> list[dict[str, Any]]:
    """A line a sweep, the newest first. One that cannot be read is a line as well."""
    found = [(key, store, study) for key, store in projects.all().items() for study in studies_of(store)]
    found.sort(key=lambda each: each[2].path.stat().st_mtime, reverse=True)
    return [_line(key, store, study) for key, store, study in found[:_MOST]]


def sweep_page(projects: Projects, key: str, name: str, environ: Mapping[str, str], names: Names) -> str:
    """Its HTML. Raises RunNotFoundError."""
    store = projects.all().get(key)
    if store is None:
        raise RunNotFoundError("There is no such sweep")
    study = find_study(store, name)
    return page(looked_at(study, environ), study.shown(), names, _LINKS)


def _line(key: str, store: RunStore, study: Study) -> dict[str, Any]:
    line: dict[str, Any] = {"key": key, "project": store.project.name, "name": study.path.parent.name}
    try:
        definition, trials, state = study.definition, study.shown(), study.standing()
        objective = definition.parsed_objective()
    except (SeatrialError, ValueError, KeyError, TypeError) as error:
        return {**line, "title": "", "standing": f"cannot be read: {type(error).__name__}", "best": None, "chip": None}
    best = best_of(trials, objective)
    return {
        **line,
        "title": definition.title,
        "standing": in_words(trials, objective, definition.trials, None),
        "best": None if best is None or objective is None else f"{objective.metric} {figure(best.value or 0.0)}",
        "chip": {"colour": STATES[state].colour, "words": f"{STATES[state].mark}{state}"},
    }
