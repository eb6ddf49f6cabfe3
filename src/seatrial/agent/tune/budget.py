"""Budget: what is left of a tune's time, and what one more trial may take of it."""

import time
from typing import List

from seatrial.agent.tune.spec import Spec
from seatrial.agent.tune.standing import Standing
from seatrial.agent.tune.trial import Trial

#: A trial that compiles may take so much longer than the others, as a share of the budget, and is taken to take so
#: many seconds longer until one was seen. Source: mingpt on an H200, 26 s; BERT with batches of varying length never
#: ended.
_COMPILE_SHARE, _COMPILES_S = 0.25, 20.0


class Budget:
    """From when it is made.

    Attributes:
        compiled_s: what trials that compile took.
    """

    def __init__(self, asked: Spec, standing: Standing) -> None:
        self._spec, self._standing = asked, standing
        self._began_s = time.monotonic()
        self.compiled_s: List[float] = []

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        return self._spec.budget_s - self.spent_s

    def limit_s(self, slow: bool = False) -> float:
        """Of one trial: twice what the reference took, and never what the end still needs."""
        trials = self._standing.reference or self._standing.baselines
        longest_s = max([each.wall_s for each in trials] or [self._spec.seconds])
        end_s = self.end_s() if slow and self._standing.kept else 0.0
        return max(
            1.0, min(self.left_s - end_s, 2 * longest_s + 10 + (_COMPILE_SHARE * self._spec.budget_s if slow else 0))
        )

    def end_s(self) -> float:
        """For the combination once more at the end; for the baseline, too, where the budget is not small."""
        base_s = usual_s(self._standing.baselines)
        return 1.1 * usual_s(self._standing.reference) + (1.1 * base_s if self._spec.budget_s > 10 * base_s else 0.0)

    def needed_s(self, slow: bool) -> float:
        """For one more trial, and for what comes at the end."""
        trial_s = usual_s(self._standing.reference)
        if slow and "compile" not in self._standing.kept:
            trial_s = max(trial_s, *self.compiled_s) if self.compiled_s else trial_s + _COMPILES_S
        return 1.15 * trial_s + self.end_s()


def usual_s(trials: List[Trial]) -> float:
    """What a trial of these takes; of the very first one files came from the disk."""
    walls_s = sorted(each.wall_s for each in trials if each.number > 1 or len(trials) == 1)
    return walls_s[len(walls_s) // 2] if walls_s else 0.0
