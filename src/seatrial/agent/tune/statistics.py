"""Judge whether a change is faster beyond the noise and trains the same, from what was measured so far."""

from math import inf
from statistics import fmean, median, stdev
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from seatrial.agent.tune.candidates import BESIDE
from seatrial.agent.tune.trial import TuneTrial
from seatrial.common import paired
from seatrial.common.tunables import NEUTRAL

#: Most pairs of trials for a change, and pairs that compare the result with the original at the end. Fixed before.
PAIRS, LAST_PAIRS = 4, 2
#: Ratio of speeds below which a change is not worth its line, however steady the trials are.
WORTH = 1.03
#: Ratio up to which a change gets a second pair before it is kept. One whose interval ends below is "no faster".
SURE = 1.10
#: A change gets further pairs while its interval reaches this ratio.
_ANYTHING = 1.25
#: Losses are compared by their mean over this many steps, as one batch differs from the next by more than two seeds do.
_SMOOTH = 10
#: Seeds that set the margin before a change is tried, and how many times their difference a change may differ by.
SEEDS, BAND = 2, 1.5
#: Relative difference of losses below which rounding is to blame, however far seeds differ. Source: bf16 has 8 bits.
_ROUNDING = 0.004
#: Difference of examples in a step that is ignored between trials: the last batch of a pass is smaller.
_SAME_BATCH = 0.1


class Rates(NamedTuple):
    """Steps a second of trials of one kind. ``spread`` is half of highest less lowest, as a share of the median."""

    median: float
    spread: float
    trials: int


def rates(trials: Sequence[TuneTrial]) -> Optional[Rates]:
    """Return the rate of trials; a single one has the spread of its parts."""
    known = [trial for trial in trials if trial.steps_per_s]
    if not (values := [trial.steps_per_s or 0.0 for trial in known]):
        return None
    middle = median(values)
    parts = _parts(known[0])  # of one trial: the relative standard error of its mean step time
    of_one = stdev(parts) / len(parts) ** 0.5 / fmean(parts) if len(parts) > 2 else 0.05
    spread = (max(values) - min(values)) / 2 / middle if len(values) > 1 else of_one
    return Rates(middle, spread, len(values))


def _parts(trial: TuneTrial) -> List[float]:
    parts_s = (trial.report or {}).get("parts_s")
    return [part for part in parts_s if isinstance(part, float) and 0 < part < inf] if isinstance(parts_s, list) else []


def faster(
    reference: Sequence[TuneTrial], made: Sequence[TuneTrial], repeats: paired.Deviation
) -> Optional[paired.Interval]:
    """Return the speed of these trials relative to the reference's; None if a side was not measured.

    Each trial is paired with the reference's trial nearest in time, and each of those is in at most one pair.
    """
    left, pairs = [trial for trial in reference if trial.steps_per_s], []
    for trial in (trial for trial in made if trial.measured and trial.steps_per_s and left):
        nearest = min(left, key=lambda each: abs(each.number - trial.number))
        left.remove(nearest)
        pairs.append([paired.Sampled(each.steps_per_s or 1.0, _parts(each)) for each in (nearest, trial)])
    return paired.ratio(pairs, repeats) if pairs else None


def is_open(found: paired.Interval, sure: float) -> bool:
    """Return whether another pair could change the verdict: the change may be worthwhile, but is not sure."""
    if found.low > 1:
        return WORTH <= found.middle < sure
    return found.middle >= WORTH or found.high >= _ANYTHING


def windows(losses: Sequence[Optional[float]], less: Optional[Sequence[Optional[float]]] = None) -> List[float]:
    """Return means over windows of steps, of losses or of their excess over others, without steps that lack a loss."""
    pairs = zip(losses, [0.0] * len(losses) if less is None else less)
    known = [one - other for one, other in pairs if one is not None and other is not None]
    size = min(_SMOOTH, max(1, len(known) // 3))
    return [fmean(known[at : at + size]) for at in range(0, len(known) - size + 1, size)]


class Band:
    """The losses of the original by seed offset. The first seeds set the margin; trials are compared under one seed."""

    def __init__(self) -> None:
        self.curves: Dict[int, Sequence[Optional[float]]] = {}

    def add(self, trial: TuneTrial) -> None:
        if trial.losses:
            self.curves.setdefault(trial.seed_offset, trial.losses)

    @property
    def width(self) -> float:
        """Return the largest difference between the first seeds, and at least the rounding error: margin / BAND."""
        first = list(self.curves.values())[:SEEDS]
        apart = windows(first[0], first[-1]) if first else []
        levels = [_ROUNDING * value for curve in first for value in windows(curve)]
        return max(map(abs, [*apart, *levels]), default=0.0)

    @property
    def level(self) -> Optional[float]:
        """Return the size of the losses, half way through; None without any."""
        return median(map(abs, windows(next(iter(self.curves.values()))))) if self.curves else None

    def _differences(self, trial: TuneTrial) -> List[float]:
        return windows(trial.losses, self.curves.get(trial.seed_offset, ()))

    def distance(self, trial: TuneTrial) -> Optional[float]:
        """Return the largest difference from the baseline under the same seed; None if either has no losses."""
        return max(map(abs, self._differences(trial)), default=None)

    def off(self, trials: Sequence[TuneTrial]) -> Optional[paired.Interval]:
        """Return how much higher losses are in the second half than the baseline's of the same seeds; None without."""
        found = [self._differences(trial) for trial in trials]
        late = [difference for differences in found for difference in differences[len(differences) // 2 :]]
        return paired.mean(late) if late else None


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
        self.kept = {key: value for _, changes, _ in self.kept_order for key, value in changes.items()}
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

    def repeats(self) -> paired.Deviation:
        """Return how much repeated trials differed up to the last kept change."""
        groups = [self.warm(self.baselines), *(made for _, _, made in self.kept_order)]
        return paired.deviation([[trial.steps_per_s for trial in group if trial.steps_per_s] for group in groups])

    def why_different(self, name: str, made: Sequence[TuneTrial]) -> Optional[str]:
        """Return why a change does not train the same; None if it does, as far as losses show."""
        if any(each.not_finite for each in made):
            return "its losses are not finite"
        # Examples per step; the last batch of a pass may be smaller, and fall into one trial only.
        both = (self.baselines[0], made[-1])
        batches = [(each.examples_per_s or 0.0) / (each.steps_per_s or 1.0) for each in both]
        if all(batches) and abs(batches[0] / batches[1] - 1) > _SAME_BATCH:
            return "its steps are of %.4g examples, and the script's of %.4g" % (batches[1], batches[0])
        if (off := self.band.off(made)) is None:
            neutral = all(each in NEUTRAL for each in name.split(BESIDE))
            return None if neutral else "no losses were recorded, so equal training cannot be shown"
        margin = BAND * self.band.width
        if off.within(margin) and off.low >= -margin:
            return None
        words = "its losses differ by %.3g (%.3g to %.3g), and the margin is %.3g"
        return words % (off.middle, off.low, off.high, margin)
