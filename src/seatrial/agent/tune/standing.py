"""Standing: what a tune has measured and kept so far, and what that says of one more change."""

from typing import Any, Dict, List, Optional, Tuple

from seatrial.agent.tune import judging
from seatrial.agent.tune.candidates import BESIDE
from seatrial.agent.tune.trial import Trial
from seatrial.common.contract.tunables import NEUTRAL

#: Examples in a step may differ by so much between trials: the last batch of a pass is smaller.
_SAME_BATCH = 0.1


class Standing:
    """Attributes:

    kept: changes so far; kept_order: each with its name and trials, in the order in which they went in.
    baselines: trials of the script as it is. reference: trials under ``kept``, which the next change is compared with.
    band: how the losses of baselines differ.
    """

    def __init__(self) -> None:
        self.band = judging.Band()
        self.kept: Dict[str, Any] = {}
        self.kept_order: List[Tuple[str, Dict[str, Any], List[Trial]]] = []
        self.baselines: List[Trial] = []
        self.reference: List[Trial] = []

    def add_baseline(self, made: Trial) -> None:
        self.baselines.append(made)
        self.band.add(made)

    def keep(self, name: str, changes: Dict[str, Any], made: List[Trial]) -> None:
        """A change of this name went in; its trials are what the next one is compared with."""
        self.kept = {**self.kept, **changes}
        self.kept_order.append((name, changes, made))
        self.reference = made

    def remove_last(self) -> Tuple[str, Dict[str, Any]]:
        """The change that went in last goes out: its name, and what it changed."""
        name, applied, _ = self.kept_order.pop()
        self.kept = {}
        for _, changes, _ in self.kept_order:
            self.kept.update(changes)
        self.reference = self.kept_order[-1][2] if self.kept_order else self.baselines
        return name, applied

    @staticmethod
    def warm(trials: List[Trial]) -> List[Trial]:
        """Without the very first, where a later one is faster: its files came from the disk."""
        if len(trials) > 1 and trials[0].number == 1:
            later = trials[1:]
            if (trials[0].steps_per_s or 0.0) < min(each.steps_per_s or 0.0 for each in later):
                return later
        return trials

    def deviation(self) -> float:
        """Of what was measured before the last change that is kept, as far as its steps vary as much as now."""
        groups = [self.warm(self.baselines), *(made for _, _, made in self.kept_order)]
        return judging.deviation(groups, [judging.steadier(self.reference, group) for group in groups])

    def why_different(self, name: str, made: Trial) -> Optional[str]:
        """None where it trains the same, as far as losses can tell."""
        if made.not_finite:
            return "its losses are not finite"
        batches = [_examples(each) for each in (self.baselines[0], made)]
        if all(batches) and abs(batches[0] / batches[1] - 1) > _SAME_BATCH:
            return "its steps are of %.4g examples, and the script's of %.4g" % (batches[1], batches[0])
        agrees = self.band.agrees(made)
        if agrees is None:
            neutral = all(each in NEUTRAL for each in name.split(BESIDE))
            return None if neutral else "no losses were seen, so nobody can say that it trains the same"
        if agrees:
            return None
        return "its losses differ by %.3g, and two seeds' by %.3g" % (self.band.distance(made) or 0.0, self.band.width)


def _examples(made: Trial) -> float:
    """In a step; the last batch of a pass may be smaller, and fall into one trial only."""
    return (made.examples_per_s or 0.0) / (made.steps_per_s or 1.0)
