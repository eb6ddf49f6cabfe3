"""random: settings drawn evenly; the same seed draws the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.search.objective import Objective
from seatrial.search.space import Settings, Space
from seatrial.search.trial import Trial

#: Draws after which a space of few combinations is taken to be used up.
_MOST_DRAWS = 1000


@dataclass(frozen=True)
class Random:
    """The engine of that name."""

    seed: int

    def ask(self, space: Space, objective: Objective | None, trials: Sequence[Trial]) -> Settings | None:
        """Settings that no trial has."""
        tried = [trial.settings for trial in trials]
        if space.is_finite and len(tried) >= space.size:
            return None
        source = random.Random(f"{self.seed} {len(trials)}")
        for _ in range(_MOST_DRAWS):
            drawn = {dimension.name: dimension.at(source.random()) for dimension in space.dimensions}
            if drawn not in tried:
                return drawn
        if not space.is_finite:
            return None
        return next((settings for settings in space.combinations() if settings not in tried), None)
