"""Compare two things measured in turn: ratios of pairs, a reproducible bootstrap interval, a margin fixed before."""

import math
import random
from statistics import fmean
from typing import Callable, NamedTuple, Optional, Sequence, Tuple

#: Resamples per interval, the seed of their draws, and the share of them inside the interval.
_DRAWS, _SEED, _LEVEL = 2000, 17, 0.95
#: Relative standard deviation assumed before any repeat, and the number of repeats that it counts as.
_USUAL, _USUAL_COUNT = 0.02, 2
#: Number of pairs that the deviation of other repeats counts as: a few pairs show little of how pairs differ.
_EXPECTED_COUNT = 2


class Interval(NamedTuple):
    """``middle`` is what was measured; in 95 of 100 comparisons the truth is between ``low`` and ``high``."""

    low: float
    middle: float
    high: float

    @property
    def words(self) -> str:
        """Return ``2.16 (2.02 to 2.31)``."""
        return "%.2f (%.2f to %.2f)" % (self.middle, self.low, self.high)

    def within(self, margin: float) -> bool:
        """Return whether a difference is not inferior: its upper end is not above a margin that was fixed before."""
        return self.high <= margin


class Sampled(NamedTuple):
    """One run: its rate, and the time or rate of its parts, if they were measured separately."""

    rate: float
    parts: Sequence[float] = ()


class Deviation(NamedTuple):
    """The relative standard deviation of identical runs, and the number of repeats behind it."""

    share: float
    repeats: float

    def draw(self, dice: random.Random) -> float:
        """Draw the deviation of a repeat; after few repeats it may well exceed theirs."""
        return dice.gauss(0, self.share) * math.sqrt(self.repeats / dice.gammavariate(self.repeats / 2, 2))


def deviation(groups: Sequence[Sequence[float]]) -> Deviation:
    """Return how repeats differ, from groups of identical runs."""
    squares, count = _USUAL_COUNT * _USUAL**2, _USUAL_COUNT
    for values in filter(None, groups):
        squares += sum((value / fmean(values) - 1) ** 2 for value in values)
        count += len(values) - 1
    return Deviation(math.sqrt(squares / count), count)


def ratio(pairs: Sequence[Sequence[Sampled]], repeats: Optional[Deviation] = None) -> Interval:
    """Return the ratio of the second rate of each pair to the first: the geometric mean over the pairs.

    A draw resamples pairs, and parts of a run whose own rate varied; ``repeats``, the deviation of each run of a pair,
    by default from the pairs, stands in for missing ones.
    """
    logs = [math.log(second.rate / first.rate) for first, second in pairs]
    count, middle = len(logs), fmean(logs)
    if repeats is None:
        repeats = deviation([[math.exp((log - middle) / math.sqrt(2)) for log in logs]])
    seen = (count - 1) / (count - 1 + _EXPECTED_COUNT)
    grown = math.sqrt(seen * count / (count - 1)) if count > 1 else 0.0

    def draw(dice: random.Random) -> float:
        drawn = middle
        for at in dice.choices(range(count), k=count):
            unseen = math.sqrt(2) * repeats.draw(dice) + sum(_within(each.parts, dice) for each in pairs[at])
            drawn += (grown * (logs[at] - middle) + math.sqrt(1 - seen) * unseen) / count
        return drawn

    low, high = _ends(draw)
    return Interval(math.exp(low), math.exp(middle), math.exp(high))


def _within(parts: Sequence[float], dice: random.Random) -> float:
    if len(parts) < 2:
        return 0.0
    drawn = sum(dice.choices(parts, k=len(parts)))
    return dice.choice((1, -1)) * math.log(drawn / sum(parts)) if drawn > 0 < sum(parts) else 0.0


def mean(values: Sequence[float], cut: float = 0.0) -> Interval:
    """Return the mean of differences of pairs without a share ``cut`` at each end, in which others used the machine."""

    def of(some: Sequence[float]) -> float:
        out = int(cut * len(some))
        return fmean(sorted(some)[out : len(some) - out])

    low, high = _ends(lambda dice: of(dice.choices(values, k=len(values))))
    return Interval(low, of(values), high)


def _ends(draw: Callable[[random.Random], float]) -> Tuple[float, float]:
    dice = random.Random(_SEED)
    drawn = sorted(draw(dice) for _ in range(_DRAWS))
    out = int((1 - _LEVEL) / 2 * _DRAWS)
    return drawn[out], drawn[-1 - out]
