"""local: each trial a run of this machine's, some at a time."""

from __future__ import annotations

from seatrial.search.search import Search


def run_trials(search: Search) -> None:
    """Ask, run and tell until there are no more."""
    raise NotImplementedError
