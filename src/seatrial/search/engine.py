"""What chooses settings, and what ends a trial early: neither keeps anything between two questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from seatrial.search.objective import Objective
from seatrial.search.space import Settings, Space
from seatrial.search.trial import Trial


class Engine(Protocol):
    """Chooses the settings of the next trial."""

    def ask(self, space: Space, objective: Objective | None, trials: Sequence[Trial]) -> Settings | None:
        """Settings that no other trial has on its way; None: there are no more.

        Args:
            trials: all so far, running ones included, by number.
        """
        ...


@dataclass(frozen=True)
class Behind:
    """A pruner's answer.

    Attributes:
        why: a trial that is to be stopped is behind the others, in words; None: it goes on.
        notes: kept with the trial, and in ``Trial.notes`` the next time.
    """

    why: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)


class Pruner(Protocol):
    """Ends trials that fall behind."""

    def judge(self, objective: Objective, trials: Sequence[Trial], trial: Trial) -> Behind:
        """Asked after each report of a running trial; ``trials`` has it, too."""
        ...
