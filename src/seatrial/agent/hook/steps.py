"""Count and time the steps of one training process, and report what their time went into.

It knows no framework: the framework files call it where something begins or ends. The code of every step is kept short:
a line of Python that was not in the CPU's caches costs some microseconds on a slow core.
"""

import atexit
import os
import sys
import weakref
from statistics import median
from threading import get_ident
from time import perf_counter
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

from . import report
from .timeline import StepLines

#: Most durations in a line's median, and the number of recent ones.
_MOST_DURATIONS, _RECENT = 4096, 64

#: A stretch without gradients counts as evaluation if it takes this long, and this many average steps. The average
#: includes evaluations, so it is far above a step's own time where there are many.
SHORTEST_EVALUATION_S, _EVALUATION_STEPS = 0.03, 2.0

#: The thread of a recorder that is switched off.
NOBODY = -1

#: After this many steps of another optimizer in a row, the one that bounds steps will not step again.
_PENDING_STEPS = 32
#: Steps kept until it is known whether they are steps of their own.
_MOST_PENDING = 4096

#: Similar steps in a row after which steps are plain, and seconds until one is observed again.
_ALIKE, _PLAIN_S = 8, 0.2

#: Stands for: no context without gradients was entered.
NEVER = (None,)


class Recorder(StepLines):
    """Counts and times the steps of the thread that makes them.

    A step ends where an optimizer has stepped that bounds steps: the first one, and each that steps with a batch of
    its own, on parameters that this step has changed already, or when the one before is gone. Steps of others are part
    of it (a GAN's generator), until they turn out to follow each other alone (folds without a loader).

    Attributes:
        on: False once anything in here went wrong, and in children of a process that had made steps.
        batches: taken from loaders.
        passes: backward passes begun, in the thread that trains once it has stepped.
        becomes_plain: called before plain steps with the batches of each; returns False if those must be observed.
        looks_closely: called after plain steps. drawn: returns the examples in a number of their batches.
        taken: True once the thread that trains has stepped.
        thread: the one that trains, NOBODY when off: one comparison decides whether to count.
        look, next_look: called with the number of the step that has ended, from step ``next_look`` on.
        at_ends: called before the last line.
        at_step: called with the number of every step, for a trial.
        evaluated: called when some time has turned out to be evaluation.
        without: the outermost context without gradients that is entered, when, and the timeline then; else NEVER.
        compiles: whether torch.compile is at work, which looks into what it meets.
        compile_begins_at: the step behind which a change of ours has torch.compile begin.
    """

    def __init__(self) -> None:
        super().__init__()
        self.on = True
        self.thread = get_ident()
        self.next_look = 0
        self._alike = self._each = 0  # similar steps in a row, and the batches that each took
        self.becomes_plain: Callable[[int], bool] = lambda batches: False
        self.looks_closely: Callable[[], None] = lambda: None
        self.drawn: Callable[[int], float] = lambda batches: 0.0
        self.look: Callable[[int], None] = lambda step: None
        self.at_ends: List[Callable[[], None]] = []
        self.evaluated: Callable[[], None] = lambda: None
        self.compiles: Callable[[], bool] = lambda: False
        self.compile_begins_at: Optional[int] = None
        self.stepped_elsewhere: Callable[[], None] = lambda: None
        self.at_step: Optional[Callable[[int], None]] = None
        self.batches = self.passes = 0
        self._boundary: Callable[[], Any] = lambda: None
        self._boundary_id, self._run = 0, 0
        self._pending: List[Tuple[int, float]] = []
        self._batches_then, self._passes_then, self._took_data = 0, 0, False
        self._doubtful_unused = 0
        self._owned: Any = weakref.WeakKeyDictionary()  # an optimizer → its parameters' ids
        self._threads: Dict[int, Any] = {}  # a thread other than the one that trains → its first optimizer
        self._is_child = self.taken = False
        self.doubtful: Optional[Dict[str, float]] = None
        self._doubtful_examples: float = 0
        self._evaluates_since: Optional[Dict[str, float]] = None
        self.without: Any = NEVER
        os.register_at_fork(after_in_child=self._in_child)
        atexit.register(self.finish)

    def _in_child(self) -> None:
        """Begin anew where the parent has made no step: its child may train."""
        self.timeline.plain = 0
        self.looks_closely()
        if not self.on or self.steps:
            self.on, self.thread = False, NOBODY
            return
        self.thread, self._pid, self._is_child, self.taken = get_ident(), os.getpid(), True, False
        self.timeline.restart()
        self.examples = self.batches = self.elsewhere = self._without_data = self.unused = 0
        self.doubtful = self._evaluates_since = None
        self.without, self._pending = NEVER, []

    def mine(self) -> bool:
        """Return whether what happens now is to be counted: on the thread that trains, and nothing has gone wrong."""
        return get_ident() == self.thread

    def waited_for(self) -> bool:
        """Return whether this is the thread that trains, or one of autograd's that it waits for."""
        return self.on and (self.timeline.current in ("backward", "communication") or get_ident() == self.thread)

    def take_thread(self) -> None:
        """Make this thread the one that trains. multiprocessing ends its children without atexit."""
        if self._is_child and "multiprocessing.util" in sys.modules:
            sys.modules["multiprocessing.util"].Finalize(None, self.finish, exitpriority=0)
        self.taken = True
        if self.on and self.thread != get_ident():
            self.thread = get_ident()
            self.timeline.enter("other")

    def stop(self, error: BaseException) -> None:
        """Switch off after an error in here, and report it."""
        if self.on:
            self.on, self.thread, self.timeline.plain = False, NOBODY, 0
            report.failure("hook_stopped", error)
            self.looks_closely()

    # evaluation

    def doubt(self) -> None:
        """Note that a loader without training so far is iterated: it is evaluation, unless a step follows."""
        if self.doubtful is None:
            self.look_closely()
            self.doubtful = self.timeline.totals()
            self._doubtful_examples, self._doubtful_unused = self.examples, self.unused

    def doubt_ends(self) -> None:
        """Count the pass in doubt as evaluation: no step followed, and its loader ended or a trained one goes on."""
        if self.doubtful is not None:
            self.timeline.move_to_evaluation(self.doubtful)
            self.examples, self.doubtful = self._doubtful_examples, None
            self.unused = self._doubtful_unused
            self.evaluated()

    def doubt_ended_at(self, totals: Dict[str, float], examples: float) -> None:
        """Count the time in doubt up to ``totals`` as evaluation by a loader left early; the rest was trained on."""
        if self.doubtful is not None:
            if sum(totals.values()) > sum(self.doubtful.values()):
                self.timeline.move_between(self.doubtful, totals)
            self.examples -= examples - self._doubtful_examples
            self.unused = self._doubtful_unused
            self.evaluated()

    def mode_set(self, training: bool) -> None:
        """Record a model's switch to training or evaluation; the time between is evaluation if no step was made."""
        if not training:
            if self._evaluates_since is None:
                self.look_closely()
                self._evaluates_since = self.timeline.totals()
        elif self._evaluates_since is not None:
            self.timeline.move_to_evaluation(self._evaluates_since)
            if self.doubtful is not None:  # the next pass may have begun: a step will show
                self.doubtful = self.timeline.totals()
            self._evaluates_since = None
            self.evaluated()

    def gradients_on(self) -> None:
        """Count the outermost context without gradients, which is left, as evaluation if it took many steps' time."""
        _, began_s, before = self.without
        steps_s = (self._last_step_s - (self._first_step_s or 0.0)) / max(1, self.steps - 1)
        if perf_counter() - began_s > _EVALUATION_STEPS * steps_s:
            self.timeline.move_to_evaluation(before)
            self.evaluated()

    # steps

    def bounded_by(self, what: Any) -> None:
        """End steps with ``what`` from now on: a graph that holds whole steps."""
        try:
            self._boundary = weakref.ref(what)
        except TypeError:
            self._boundary = lambda: what
        self._boundary_id, self._run = id(what), 0

    def _bounds(self, optimizer: Any) -> bool:
        """Return whether a step of another optimizer than the one that bounds steps ends a step."""
        self.trains()
        former = self._boundary()
        if former is None or self.batches != self._batches_then or self._changes_again(former, optimizer):
            self._settle()
            self.bounded_by(optimizer)
            return True
        self._pending.append((id(optimizer), perf_counter()))
        if sum(each[0] == id(optimizer) for each in self._pending[-_PENDING_STEPS:]) == _PENDING_STEPS:
            self._settle(gone=True)
            self.bounded_by(optimizer)
        elif len(self._pending) > _MOST_PENDING:
            self._settle()
        return False

    def _changes_again(self, former: Any, optimizer: Any) -> bool:
        """Return whether both own a parameter and a backward pass lies between; a wrapper steps without such a pass."""
        if self.passes == self._passes_then:
            return False
        try:
            return not self._parameters(former).isdisjoint(self._parameters(optimizer))
        except (AttributeError, TypeError):  # a graph, or another framework's
            return False

    def _parameters(self, optimizer: Any) -> FrozenSet[int]:
        found: Optional[FrozenSet[int]] = self._owned.get(optimizer)
        if found is None:
            found = frozenset(id(each) for group in optimizer.param_groups for each in group["params"])
            self._owned[optimizer] = found
        return found

    def _settle(self, gone: bool = False) -> None:
        """Count pending steps that were steps of their own: several in a row, as the boundary's were, and
        where no loader shows what a step is. With ``gone`` it will not step again."""
        pending, self._pending = self._pending, []
        if not pending or (self._took_data and not gone):
            return
        in_a_row = any(one[0] == other[0] for one, other in zip(pending, pending[1:]))  # noqa: RUF007
        if in_a_row and (gone or self._run > 1):
            self.evaluated()  # a window has these in it
            for _, then_s in pending:
                self._count(1, then_s, late=True)

    def trains(self) -> None:
        """Count doubtful time as training: an optimizer has stepped, so it was not this model's evaluation."""
        if self.doubtful is not None:
            self.stepped_elsewhere()
            self.doubtful = None
        self._evaluates_since, self.without = None, NEVER

    def stepped(self, optimizer: Any, steps: int = 1, now_s: Optional[float] = None, plainly: bool = False) -> None:
        """Record an optimizer's step, which may end a training step. ``plainly``: the next are plain if alike."""
        was_plain = self._caught_up()
        if id(optimizer) == self._boundary_id or self._bounds(optimizer):
            if self._pending:
                self._settle()
                self._run = self._alike = 0
            self._run += 1
            each = self.batches - self._batches_then
            self._alike = self._alike + 1 if each == self._each else 0
            self._each, self._took_data = each, each > 0
            self._without_data += not each
            self._batches_then, self._passes_then = self.batches, self.passes
            now_s = now_s or perf_counter()
            self._count(steps, now_s)
            alike = plainly and self._alike >= _ALIKE and each <= 1 and self.at_step is None
            if alike and self.next_look > self.steps + 1 and (was_plain or self.becomes_plain(each)):
                self.timeline.plain, self.timeline.plain_until_s = self._boundary_id, now_s + _PLAIN_S
                return
        if was_plain:
            self.looks_closely()

    def look_closely(self) -> None:
        """End plain steps because something else begins."""
        if self._caught_up():
            self.looks_closely()
            self._alike = 0

    def _caught_up(self) -> bool:
        """Count plain steps and their batches; return False if there are none. An extra batch is the next step's."""
        if not self.timeline.plain:
            return False
        stamps, batches = self.timeline.take_plain()
        steps, used = len(stamps), min(len(stamps), batches)
        for now_s in stamps:
            self._durations.append(now_s - self._last_step_s)
            self._last_step_s = now_s
        self.examples += self.drawn(batches)
        if batches - self._each * steps not in (0, 1):
            self._alike = -_MOST_PENDING
        if steps and self.without is not NEVER and self.without[1] < self._last_step_s:
            self.without = NEVER
        self.steps += steps
        self._run += steps
        self._without_data += steps - used
        self.unused += max(0, batches - used - 1)
        self._batches_then, self.batches = self.batches + used, self.batches + batches
        self._passes_then, self.passes = self.passes + steps, self.passes + steps + 1
        return True

    def stepped_in_another_thread(self, optimizer: Any) -> None:
        """Count the step, if it is of the first optimizer of that thread that lives; whose data it was is unknown."""
        known = self._threads.get(get_ident(), lambda: None)()
        if known is None:
            self._threads[get_ident()] = weakref.ref(optimizer)
        if known is None or known is optimizer:
            self.elsewhere += 1
            self._last_step_s = perf_counter()

    def _count(self, steps: int, now_s: float, late: bool = False) -> None:
        self.steps += steps
        self.trains()
        if self._first_step_s is None:
            self.begin_at(now_s, self.timeline.totals(), self.examples)
        elif len(self._durations) < _MOST_DURATIONS:
            self._durations.append((now_s - self._last_step_s) / steps)
        self._last_step_s = now_s
        if self.steps >= self.next_look and not late:
            self.look(self.steps)
        if self.at_step is not None:
            self.at_step(self.steps)
        if now_s >= self._line_due_s:
            self.report_line()

    def recent_step_s(self) -> Optional[float]:
        """Return the median duration of the last steps; None if there are few."""
        recent = self._durations[-_RECENT:]
        return median(recent) if len(recent) > _ALIKE else None

    def finish(self) -> None:
        """Report the last line and the facts at the end of the process."""
        if not self.on or os.getpid() != self._pid:
            return
        try:
            if self._is_child and not self.steps:
                return
            self.look_closely()
            for at_end in self.at_ends:
                at_end()
            self._settle()
            self.doubt_ends()
            self.report_line(at_end=True)
            self.report_facts()  # of a script that never made a step, too
        except Exception as error:  # noqa: BLE001  the script is at its end: nothing of ours may fail it
            self.stop(error)


_SHARED: List[Recorder] = []


def shared() -> Recorder:
    """Return this process's one recorder: a script may use several frameworks."""
    if not _SHARED:
        _SHARED.append(Recorder())
    return _SHARED[0]
