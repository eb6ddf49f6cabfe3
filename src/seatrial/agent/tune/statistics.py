"""Judge whether a change is faster beyond the noise and trains the same, from what was measured so far."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from seatrial.agent.tune.candidates import BESIDE
from seatrial.agent.tune.trial import TuneTrial
from seatrial.common.contract.tunables import NEUTRAL

#: A gain below this is none, however steady the trials are: machines differ by as much from one minute to the next.
LEAST_GAIN = 0.03

#: A gain below this, or below twice the noise, is measured again before it counts.
SURE_GAIN = 0.10

#: Losses are compared by their mean over so many steps, as one batch differs from the next by more than two seeds do.
_SMOOTH = 10

#: So many seeds set the margin, before a change is tried; and a change may differ by so much more than they do.
SEEDS, _BAND = 2, 1.5

#: Relative difference of losses below which rounding is to blame, however far seeds differ. Source: bf16 has 8 bits.
_ROUNDING = 0.004


class Rates(NamedTuple):
    """Steps a second of trials of one kind. ``spread`` is half of highest less lowest, as a share of the median."""

    median: float
    spread: float
    trials: int


def rates(trials: Sequence[TuneTrial]) -> Optional[Rates]:
    """Return the rate of trials; a single one has the spread of its parts."""
    values = sorted(trial.steps_per_s for trial in trials if trial.steps_per_s)
    if not values:
        return None
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    spread = (values[-1] - values[0]) / 2 / median
    if len(values) == 1:
        spread = _spread_of_parts(next(trial for trial in trials if trial.steps_per_s))
    return Rates(median, spread, len(values))


def _spread_of_parts(trial: TuneTrial) -> float:
    """Return the relative standard error of the mean step time, from the parts of the measured steps."""
    parts_s = (trial.report or {}).get("parts_s")
    parts = [part for part in parts_s if isinstance(part, float) and part > 0] if isinstance(parts_s, list) else []
    if len(parts) < 3:
        return 0.05
    mean = sum(parts) / len(parts)
    variance = sum((part - mean) ** 2 for part in parts) / (len(parts) - 1)
    return float((variance / len(parts)) ** 0.5 / mean)


def gain(trial: Rates, reference: Rates) -> float:
    """Return 0.5 for half as fast again."""
    return trial.median / reference.median - 1


def steadier(now: Sequence[TuneTrial], before: Sequence[TuneTrial]) -> float:
    """Return the factor by which steps vary less than in other trials: 1 for as much or more, at least a quarter.

    A script that waits for too few workers gives 10 to 15 % in each trial; with enough of them it gives 2 %.
    """
    spreads = [sorted(_spread_of_parts(trial) for trial in group) for group in (now, before)]
    if not all(spreads):
        return 1.0
    new, old = (each[len(each) // 2] for each in spreads)
    return min(1.0, max(_LEAST_STEADIER, new / old)) if old else 1.0


def deviation(groups: Sequence[Sequence[TuneTrial]], scales: Optional[Sequence[float]] = None) -> float:
    """Return the relative standard deviation between trials of the same, from the ranges of groups of the same.

    The range of two trials shows little, so that ``noise`` is large after two that differ.

    Args:
        scales: of each group's deviation, see ``steadier``; 1 for all where it is None.
    """
    squares, count = _PRIOR_TRIALS * _PRIOR**2, _PRIOR_TRIALS
    for group, scale in zip(groups, scales or [1.0] * len(groups)):
        values = sorted(trial.steps_per_s for trial in group if trial.steps_per_s)
        if len(values) > 1:
            sigma = (values[-1] - values[0]) / values[len(values) // 2] / _RANGE[min(len(values), len(_RANGE) + 1) - 2]
            squares += (len(values) - 1) * (scale * sigma) ** 2
            count += len(values) - 1
    return math.sqrt(squares / count)


def noise(trial: Rates, reference: Rates, sigma: float) -> float:
    """Return the least share by which trials must differ to count: trials differ, and so do the parts of each."""
    squares = [max(sigma, each.spread if each.trials == 1 else 0.0) ** 2 / each.trials for each in (trial, reference)]
    return max(LEAST_GAIN, _SIGMAS * math.sqrt(sum(squares)))


#: Mean range of so many normal values (from two on), in standard deviations. Source: d2 of control charts.
_RANGE = (1.128, 1.693, 2.059, 2.326, 2.534)

#: Steps that vary less prove only so much about how trials vary.
_LEAST_STEADIER = 0.25

#: What is taken for the deviation before anything was run twice, and how many trials' worth it counts later.
_PRIOR, _PRIOR_TRIALS = 0.02, 2

#: A gain must be so many standard deviations of a difference: about seven changes are tried.
_SIGMAS = 2.5


def smoothed(losses: Sequence[Optional[float]]) -> List[float]:
    """Return means over windows of steps, half a window apart; steps without a loss are left out."""
    known = [loss for loss in losses if loss is not None]
    size = min(_SMOOTH, max(1, len(known) // 3))
    return [sum(known[at : at + size]) / size for at in range(0, len(known) - size + 1, max(1, size // 2))]


def difference(one: Sequence[Optional[float]], other: Sequence[Optional[float]]) -> Optional[float]:
    """Return the largest difference of two smoothed loss curves over the steps that both have; None without losses."""
    shared = min(len(one), len(other))
    first, second = smoothed(one[:shared]), smoothed(other[:shared])
    pairs = list(zip(first, second))
    return max(abs(a - b) for a, b in pairs) if pairs else None


class Band:
    """The difference of the baseline's own losses from one seed to the next: the first ones set the margin."""

    def __init__(self) -> None:
        self.curves: List[Sequence[Optional[float]]] = []

    def add(self, trial: TuneTrial) -> None:
        if trial.losses and len(self.curves) < SEEDS:
            self.curves.append(trial.losses)

    @property
    def width(self) -> float:
        """Return the difference of the baselines, and at least the one that rounding makes."""
        apart = (difference(self.curves[0], self.curves[-1]) or 0.0) if self.curves else 0.0
        levels = [abs(value) for curve in self.curves for value in smoothed(curve)]
        return max(apart, _ROUNDING * max(levels, default=0.0))

    @property
    def level(self) -> Optional[float]:
        """Return the size of the losses, half way through; None without any."""
        levels = sorted(abs(value) for value in smoothed(self.curves[0])) if self.curves else []
        return levels[len(levels) // 2] if levels else None

    def distance(self, trial: TuneTrial) -> Optional[float]:
        """Return the difference from the baseline under the same seed; None if either has no losses."""
        return difference(self.curves[0], trial.losses) if self.curves and trial.losses else None

    def agrees(self, trial: TuneTrial) -> Optional[bool]:
        """Return whether it trains the same; None without losses."""
        apart = self.distance(trial)
        if apart is None:
            return None
        nearest = min(difference(curve, trial.losses) or 0.0 for curve in self.curves)
        return not trial.not_finite and nearest <= _BAND * self.width and apart <= 2 * _BAND * self.width


#: Examples in a step may differ by so much between trials: the last batch of a pass is smaller.
_SAME_BATCH = 0.1


class TuneState:
    """Attributes:

    kept: changes so far; kept_order: each with its name and trials, in the order in which they went in.
    baselines: trials of the script as it is. reference: trials under ``kept``, which the next change is compared with.
    band: how the losses of baselines differ.
    """

    def __init__(self) -> None:
        self.band = Band()
        self.kept: Dict[str, Any] = {}
        self.kept_order: List[Tuple[str, Dict[str, Any], List[TuneTrial]]] = []
        self.baselines: List[TuneTrial] = []
        self.reference: List[TuneTrial] = []

    def add_baseline(self, made: TuneTrial) -> None:
        self.baselines.append(made)
        self.band.add(made)

    def keep(self, name: str, changes: Dict[str, Any], made: List[TuneTrial]) -> None:
        """Keep a change under this name; its trials are what the next one is compared with."""
        self.kept = {**self.kept, **changes}
        self.kept_order.append((name, changes, made))
        self.reference = made

    def remove_last(self) -> Tuple[str, Dict[str, Any]]:
        """Remove the change that was kept last and return its name and what it changed."""
        name, applied, _ = self.kept_order.pop()
        self.kept = {}
        for _, changes, _ in self.kept_order:
            self.kept.update(changes)
        self.reference = self.kept_order[-1][2] if self.kept_order else self.baselines
        return name, applied

    @staticmethod
    def warm(trials: List[TuneTrial]) -> List[TuneTrial]:
        """Return the trials without the very first if all later ones are faster: its files came from the disk."""
        if len(trials) > 1 and trials[0].number == 1:
            later = trials[1:]
            if (trials[0].steps_per_s or 0.0) < min(each.steps_per_s or 0.0 for each in later):
                return later
        return trials

    def deviation(self) -> float:
        """Return the deviation of what was measured before the last kept change, as far as its steps vary as much as
        now."""
        groups = [self.warm(self.baselines), *(made for _, _, made in self.kept_order)]
        return deviation(groups, [steadier(self.reference, group) for group in groups])

    def why_different(self, name: str, made: TuneTrial) -> Optional[str]:
        """Return why a change does not train the same; None if it does, as far as losses show."""
        if made.not_finite:
            return "its losses are not finite"
        batches = [_examples(each) for each in (self.baselines[0], made)]
        if all(batches) and abs(batches[0] / batches[1] - 1) > _SAME_BATCH:
            return "its steps are of %.4g examples, and the script's of %.4g" % (batches[1], batches[0])
        agrees = self.band.agrees(made)
        if agrees is None:
            neutral = all(each in NEUTRAL for each in name.split(BESIDE))
            return None if neutral else "no losses were recorded, so equal training cannot be shown"
        if agrees:
            return None
        return "its losses differ by %.3g, and two seeds' by %.3g" % (self.band.distance(made) or 0.0, self.band.width)


def _examples(made: TuneTrial) -> float:
    """Return the mean examples per step; the last batch of a pass may be smaller, and fall into one trial only."""
    return (made.examples_per_s or 0.0) / (made.steps_per_s or 1.0)
