"""Divide a training thread's time into regions that add up."""

from time import perf_counter
from typing import Callable, Dict, List, Tuple

#: Regions of a training step's wall time, as the thread that steps sees it. ``other`` is Python, the forward pass, and
#: everything that only windows distinguish: ``sync``, ``copy``, ``forward``, ``backward``, ``optimizer``.
REGIONS = (
    *("data", "copy", "sync", "forward", "backward", "optimizer", "communication", "checkpoint", "evaluation"),
    "other",
)


class StepTimeline:
    """Seconds by region.

    Args:
        clock: seconds, monotonic.

    Attributes:
        spent: region → seconds so far, up to the last change.
        current: the region of now.
        plain: the id of an optimizer whose steps are all alike, each after one batch or none; 0 while steps are
            observed. Plain steps are noted with as little code and memory as possible, because a training step evicts
            the hook from the CPU's caches. plain_until_s: when a step is observed again.
        stamps: when plain steps ended. waits: seconds that their batches took, which ``totals`` counts as ``data``.
    """

    __slots__ = ("_clock", "_in_optimizer", "_outer", "_shifted", "current", "plain", "plain_until_s", "since_s",
                 "spent", "stamps", "waits")  # fmt: skip

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.spent: Dict[str, float] = dict.fromkeys(REGIONS, 0.0)
        self._outer: List[str] = []
        self._in_optimizer: List[bool] = []
        self.plain, self.plain_until_s = 0, 0.0
        self.stamps: List[float] = []
        self.waits: List[float] = []
        self._shifted = 0  # how many of them are counted
        self.current = "other"
        self.since_s = clock()

    def enter(self, region: str) -> None:
        """Count what follows as ``region``'s, until ``leave``."""
        now_s = self._clock()
        current = self.current
        self._outer.append(current)
        self.spent[current] += now_s - self.since_s
        self.current, self.since_s = region, now_s

    def leave(self) -> None:
        """Restore the region before the last ``enter``."""
        self.become(self._outer.pop() if self._outer else "other")

    def become(self, region: str) -> None:
        """Change the current region from now on."""
        now_s = self._clock()
        self.spent[self.current] += now_s - self.since_s
        self.current, self.since_s = region, now_s

    def shift(self, region: str, seconds: float) -> None:
        """Move so many seconds of the current region to ``region``."""
        self.spent[self.current] -= seconds
        self.spent[region] += seconds

    def restart(self) -> None:
        """Begin anew, in a process that was forked off. Wrappers hold ``spent`` itself."""
        self.take_plain()
        self.spent.update(dict.fromkeys(REGIONS, 0.0))
        self._outer, self._in_optimizer, self.current, self.since_s = [], [], "other", self._clock()

    def totals(self) -> Dict[str, float]:
        """Return a copy of ``spent``, up to now."""
        self.become(self.current)
        waited_s, self._shifted = sum(self.waits[self._shifted :]), len(self.waits)
        self.spent["other"] -= waited_s
        self.spent["data"] += waited_s
        return self.spent.copy()

    def take_plain(self) -> Tuple[List[float], int]:
        """End plain steps; return when they ended, and how many batches they took."""
        self.totals()
        stamps, batches = self.stamps.copy(), len(self.waits)
        self.stamps.clear()
        self.waits.clear()
        self.plain = self._shifted = 0
        return stamps, batches

    def move_to_evaluation(self, before: Dict[str, float]) -> None:
        """Count all since ``before`` as evaluation; the sum stays."""
        self.move_between(before, self.totals())

    def move_between(self, before: Dict[str, float], after: Dict[str, float]) -> None:
        """Count all between these two totals as evaluation."""
        for region in REGIONS:
            moved = after[region] - before[region]
            self.spent[region] -= moved
            self.spent["evaluation"] += moved

    # in windows only

    def backward_began(self) -> None:
        if self._in_optimizer and not self._in_optimizer[-1]:
            self.optimizer_failed()
        self.enter("backward")

    def backward_ended(self) -> None:
        self.leave()
        if self._in_optimizer and self._in_optimizer[-1]:  # a closure's: what follows it is the optimizer's
            self.become("optimizer")

    def optimizer_began(self, closure: bool) -> None:
        """Begin an optimizer's step. A closure computes the loss first: the rest, behind its backward pass, counts."""
        self._in_optimizer.append(closure)
        self.enter("other" if closure else "optimizer")

    def optimizer_ended(self) -> None:
        if self._in_optimizer:
            self._in_optimizer.pop()
            self.leave()

    def optimizer_failed(self) -> None:
        """End optimizers' steps that raised an exception: no hook is called after those."""
        while self._in_optimizer:
            self.optimizer_ended()
