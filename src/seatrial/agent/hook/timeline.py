"""Divide a training thread's time into regions that add up, and report lines of its steps."""

import math
import os
import time
from statistics import median
from time import perf_counter
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import report

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


#: Shortest time that a line covers. All its numbers count from the first step, so a lost line loses nothing.
LINE_EVERY_S = 1.0

#: Longer work after the last step does not belong to the steps.
_LONGEST_END_S = 0.5


class StepLines:
    """Reports the steps of a thread so far, line by line, and the facts of its training.

    Attributes:
        elsewhere: steps of threads other than the one that trains.
        unused: batches with no backward pass before the loader's next.
        facts: known facts of the training: loaders, precision, device. Reported again after each change.
        extras: functions that return more keys of a line.
        examples_a_step: returns a step's examples, as windows count them; 0 if they count none.
    """

    def __init__(self) -> None:
        self.timeline = StepTimeline()
        self.steps = self.elsewhere = self.unused = 0
        self.examples: float = 0
        self.facts: Dict[str, Any] = {}
        self.extras: List[Callable[[], Dict[str, Any]]] = []
        self.examples_a_step: Callable[[], float] = lambda: 0.0
        self._without_data = 0  # steps before which no batch was taken
        self._durations: List[float] = []
        self._first_step_s: Optional[float] = None
        self._before_first: Dict[str, float] = {}
        self._last_step_s = self._line_due_s = 0.0
        self._written_facts: Dict[str, Any] = {}
        self._written_regions: Dict[str, float] = {}
        self._pid = os.getpid()

    def begin_at(self, now_s: float, totals: Dict[str, float], examples: float) -> None:
        """Set the end of the first step, and leave out its examples: their time came before."""
        self._first_step_s, self._line_due_s = now_s, now_s + LINE_EVERY_S
        self._before_first, self._last_step_s = totals, now_s
        self.examples -= examples
        self.facts["first_step_after_s"] = round(age_s() - (perf_counter() - now_s), 3)

    def report_line(self, at_end: bool = False) -> None:
        """Report one line of all so far; ``at_end``: of the process, without what it did after its last step."""
        if self._first_step_s is None:
            return
        totals = self.timeline.totals()
        seconds = perf_counter() - self._first_step_s
        regions = {name: spent - self._before_first[name] for name, spent in totals.items()}
        stepped_s = self._last_step_s - self._first_step_s
        if at_end and seconds - stepped_s > _LONGEST_END_S:
            seconds = stepped_s
            written_s = sum(self._written_regions.values())  # not looked at since then: steps as they were before
            if written_s:
                regions = {name: spent * seconds / written_s for name, spent in self._written_regions.items()}
            else:
                regions["other"] = seconds - sum(spent for name, spent in regions.items() if name != "other")
                regions = regions if regions["other"] >= 0 else {"other": seconds}
        self._written_regions = regions = {name: round(spent, 6) for name, spent in regions.items() if spent > 0}
        line: Dict[str, Any] = {
            "pid": self._pid,
            "steps": self.steps + self.elsewhere,
            "seconds": round(seconds, 6),
            "stepped_s": round(stepped_s, 6),
            "examples": self._known_examples(),
            "regions": regions,
        }
        if self._durations:
            line["median_step_s"] = round(median(self._durations), 7)
        for extra in self.extras:
            line.update(extra())
        report.write("anatomy", line)
        self.report_facts()
        self._durations = []
        self._line_due_s = perf_counter() + LINE_EVERY_S

    def _known_examples(self) -> int:
        """Return the examples of all steps. Where counting does not show those of some, because their batch is of no
        loader or of a loader in another thread, or batches were left out or joined, windows may; else 0, as where the
        size of a batch is one that only the script knows."""
        few = max(1, self.steps // 20)
        if math.isnan(self.examples):
            return 0
        if self.elsewhere or self._without_data > few or self.unused > few:
            return int(self.examples_a_step() * (self.steps - 1 + self.elsewhere))
        return int(self.examples)

    def report_facts(self) -> None:
        """Report the facts of the training if they have changed."""
        if self.facts and self.facts != self._written_facts:
            self._written_facts = dict(self.facts)
            report.write("training", {"pid": self._pid, **self.facts})


def age_s() -> float:
    """Return the seconds since this process was started. Source: proc(5), starttime in clock ticks since boot."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
