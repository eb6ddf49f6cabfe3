"""Recorder: steps of one training process, what their time went into, and the lines that tell it.

It knows no framework: measure_torch.py calls it where something begins or ends.
"""

import atexit
import os
import time
from statistics import median
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, Dict, List, Optional

from . import report
from .timeline import Timeline

#: A line tells of at least so much time. All numbers in it are since the first step, so a lost line loses nothing.
LINE_EVERY_S = 1.0

#: Steps whose durations a line's median is of, at most.
_MOST_DURATIONS = 4096


#: The thread of a recorder that is switched off.
NOBODY = -1


class Recorder:
    """Counts and times the steps of the thread that makes them.

    A step ends where the first optimizer that was seen has stepped; others' steps are part of it.

    Attributes:
        on: False once anything in here went wrong, and in forked children.
        thread: the one that trains, NOBODY when off: one comparison says whether to count.
        facts: what is known of the training: loaders, precision, device. Told again whenever it has changed.
        at_step: called after each step with its number, for what is measured in some steps only.
        extra: called for more keys of a line.
    """

    def __init__(self) -> None:
        self.on = True
        self.thread = get_ident()
        self.timeline = Timeline()
        self.steps = self.examples = 0
        self.facts: Dict[str, Any] = {}
        self.at_step: Callable[[int], None] = lambda step: None
        self.extra: Callable[[], Dict[str, Any]] = dict
        self._told_facts: Dict[str, Any] = {}
        self._boundary: Any = None
        self._boundary_missed = 0
        self._pending_examples = 0
        self._batch_start: Optional[Dict[str, float]] = None
        self._first_step_s: Optional[float] = None
        self._before_first: Dict[str, float] = {}
        self._last_step_s = self._line_due_s = 0.0
        self._durations: List[float] = []
        self.in_closure = False
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self.finish)

    def _in_child(self) -> None:
        self.on, self.thread = False, NOBODY

    def mine(self) -> bool:
        """Whether what happens now is to be counted: on the thread that trains, and nothing has gone wrong."""
        return get_ident() == self.thread

    def waited_for(self) -> bool:
        """Whether this is a thread of autograd's that the thread that trains waits for, or that thread itself."""
        return self.on and (self.timeline.current in ("backward", "communication") or get_ident() == self.thread)

    def take_thread(self) -> None:
        """This is the thread that trains."""
        if self.on and self.thread != get_ident():
            self.thread = get_ident()
            self.timeline.enter("other")

    def stop(self, error: BaseException) -> None:
        """Something in here went wrong: no more of it, and the evidence says so."""
        if self.on:
            self.on, self.thread = False, NOBODY
            report.write("hook_stopped", {"reason": ("%s: %s" % (type(error).__name__, error))[:300]})

    def batch_asked(self) -> None:
        """The script asks a loader for its next batch. One that no backward pass followed was for evaluation."""
        if self._batch_start is not None:
            self.timeline.move_to_evaluation(self._batch_start)
            self._pending_examples = 0
        self._batch_start = self.timeline.enter_data()

    def batch_came(self, examples: Optional[int]) -> None:
        self.timeline.leave()
        if examples is None:  # the pass is over
            self._batch_start = None
        else:
            self._pending_examples += examples

    def backward_began(self) -> None:
        self._batch_start = None  # this batch is trained on
        self.timeline.enter("backward")

    def backward_ended(self) -> None:
        self.timeline.leave()
        if self.in_closure:
            self.timeline.become("optimizer")

    def optimizer_began(self, closure: bool) -> None:
        """A closure computes the loss first: the time is the optimizer's behind its backward pass only."""
        self.in_closure = closure
        self.timeline.enter("other" if closure else "optimizer")

    def optimizer_ended(self) -> float:
        """The time."""
        self.in_closure = False
        return self.timeline.leave()

    def bounded_by(self, what: Any) -> None:
        """Steps end with this one from now on: a graph that holds whole steps."""
        self._boundary = what

    def stepped(self, optimizer: Any, now_s: float, steps: int = 1) -> None:
        """The optimizer has stepped, just now: a step is complete, if it is the one that bounds them."""
        if self._boundary is None or (optimizer is not self._boundary and self._boundary_missed >= 32):
            self._boundary, self._boundary_missed = optimizer, 0
        if optimizer is not self._boundary:
            self._boundary_missed += 1  # one that never steps again bounds nothing
            return
        self._boundary_missed = 0
        self.steps += steps
        self.examples += self._pending_examples
        if self._first_step_s is None:
            self._first_step_s, self._line_due_s = now_s, now_s + LINE_EVERY_S
            self._before_first = self.timeline.totals()
            self.examples = 0  # their time came before the first step's end
            self.facts["first_step_after_s"] = round(_age_s(), 3)
        elif len(self._durations) < _MOST_DURATIONS:
            self._durations.append((now_s - self._last_step_s) / steps)
        self._last_step_s = now_s
        self._pending_examples = 0
        self._batch_start = None
        self.at_step(self.steps)
        if now_s >= self._line_due_s:
            self.tell()

    def tell(self) -> None:
        """One line of all so far."""
        if self._first_step_s is None:
            return
        totals = self.timeline.totals()
        now_s = perf_counter()
        line: Dict[str, Any] = {
            "pid": self._pid,
            "steps": self.steps,
            "seconds": round(now_s - self._first_step_s, 6),
            "examples": self.examples,
            "regions": {
                name: round(seconds - self._before_first[name], 6)
                for name, seconds in totals.items()
                if seconds - self._before_first[name] > 0
            },
        }
        if self._durations:
            line["median_step_s"] = round(median(self._durations), 7)
        line.update(self.extra())
        report.write("anatomy", line)
        if self.facts != self._told_facts:
            self._told_facts = dict(self.facts)
            report.write("training", {"pid": self._pid, **self.facts})
        self._durations = []
        self._line_due_s = now_s + LINE_EVERY_S

    def finish(self) -> None:
        """The last line, at the end of the process."""
        if not self.on or os.getpid() != self._pid:
            return
        try:
            self.tell()
        except Exception as error:  # noqa: BLE001  the script is at its end: nothing of ours may fail it
            self.stop(error)


def _age_s() -> float:
    """Seconds since this process was started. Source: proc(5), starttime in clock ticks since boot."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
