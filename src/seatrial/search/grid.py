"""grid: every combination, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.search.objective import Objective
from seatrial.search.space import Settings, Space
from seatrial.search.trial import Trial


@dataclass(frozen=True)
class Grid:
    """The engine of that name."""

    def ask(self, space: Space, objective: Objective | None, trials: Sequence[Trial]) -> Settings | None:
        """The first combination that no trial has."""
        tried = [trial.settings for trial in trials]
        return next((settings for settings in space.combinations() if settings not in tried), None)
