"""Those who carry a study's trials out, by name: a visible table.

A runner asks the search for trials until there are none, runs them, reports and tells. It returns when all is over.
"""

from __future__ import annotations

from collections.abc import Callable

from seatrial.search.search import Search

Runner = Callable[[Search], None]


def _local(search: Search) -> None:
    from seatrial.search.local import run_trials

    run_trials(search)


def _ray(search: Search) -> None:
    from seatrial.search.on_ray.tuner import run_trials

    run_trials(search)


#: Name → runner. ``local``: each trial a run of this machine's. ``ray``: of a Ray cluster's nodes.
RUNNERS: dict[str, Runner] = {"local": _local, "ray": _ray}
