"""Look at a few steps closely now and then, so that the others cost nothing.

In a window backward passes, optimizers, copies and synchronisations are timed, the last with the line of the script
that waits, and CUDA events mark the step's phases on the GPU. Between windows torch is as it was.
"""

import os
from statistics import median
from time import perf_counter
from typing import Any, Callable, Dict, List, Tuple

from .observe import ScriptLines
from .steps import Recorder
from .torch_wrappers import WindowWrappers, tables_of_functions

#: The first window opens after this step, as the first steps start up what later ones find ready; and its steps.
_FIRST_STEP, _STEPS = 3, 10
#: Least steps and seconds between two windows, which also doubles the time since the first. Each window changes
#: torch.Tensor, which Python's specialised bytecode has to learn anew.
_BETWEEN_STEPS, _BETWEEN_S = 20, 1.0
#: The budget in seconds, and in addition as a share of the time since the first window. It covers all windows and one
#: more at the cost of the last.
_AHEAD_S, _SHARE = 0.02, 0.002

#: No window opens within this many steps of a change that compiles: the code would be compiled with the window's hooks,
#: and once more without. Two steps compile, a third records CUDA graphs; varying sizes are compiled a second time.
_COMPILE_STEPS = 6

#: Lines of the script that are reported, the most expensive first.
_MOST_SITES = 5


class Windows(WindowWrappers):
    """Opens and closes windows and sums them up; calls each of ``also`` with True at the start and False at the end."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        super().__init__(torch, recorder)
        self._before: Dict[str, float] = {}
        self._opened_s = self._due_s = self._first_s = 0.0
        self._stamps: List[float] = []
        self._paid_s = self._cost_s = 0.0  # for all windows, and for the last one
        self._usual_s = 0.0  # of a step outside windows
        self._closed, self._length = 0, _STEPS
        self.also: List[Callable[[bool], None]] = []
        self._lines_of = ScriptLines(self._between_s, self._passed_by)
        self._lines: Dict[Tuple[str, int], float] = {}
        recorder.evaluated = self.spoil
        self._until = self._next = 0
        self._steps = 0
        self._seconds = 0.0
        self._regions: Dict[str, float] = {}
        self._sites: Dict[str, List[float]] = {}
        self._copied: Dict[str, float] = {}
        self._calls = 0  # of the module that is called most often in a window, for gradients

    def at_step(self, step: int) -> None:
        """Record the end of step number ``step``; open or close a window if it is time."""
        recorder, now_s = self._recorder, perf_counter()
        if self.open and self._is_compiled_now(step):
            self.spoil()
            recorder.next_look = step + 1
        elif self.open:
            self._stamps.append(now_s)
            self.given.stepped()
            self._lines_of.step()
            self.mark("end")
            if step >= self._until:
                self._close(step)
            recorder.next_look = step + 1
        elif step < _FIRST_STEP or self._is_compiled_now(step):
            recorder.next_look = step + 1
        elif step >= self._next and now_s >= self._due_s and self._is_affordable(now_s):
            self._usual_s = recorder.recent_step_s() or self._usual_s
            self._gpu.collect()
            self._open(step)
            recorder.next_look = step + 1
            self._stamps = [now_s, perf_counter()]
        else:
            self._placed.take_out((self._torch.Tensor, self._torch.nn.Module))
            recorder.next_look = max(step + 8, self._next)

    def must_look(self) -> bool:
        """Return whether wrappers of an earlier window may come back, which ``at_step`` takes out."""
        return bool(self._placed.originals)

    def _is_affordable(self, now_s: float) -> bool:
        return self._paid_s + self._cost_s <= _AHEAD_S + _SHARE * (now_s - (self._first_s or now_s))

    def _pay(self, began_s: float) -> None:
        """Count the window's cost: its opening, its closing since ``began_s``, and how much longer its steps took than
        the usual one. The median leaves out delays of the script itself."""
        opened_s, *stamps = self._stamps
        steps = [later - earlier for earlier, later in zip(stamps, stamps[1:])]  # noqa: RUF007
        longer_s = median(steps) - self._usual_s if steps and self._usual_s else 0.0
        self._cost_s = stamps[0] - opened_s + perf_counter() - began_s + max(0.0, longer_s) * len(steps)
        self._paid_s += self._cost_s

    def _is_compiled_now(self, step: int) -> bool:
        began = self._recorder.compile_begins_at
        return began is not None and step < began + _COMPILE_STEPS

    def spoil(self) -> None:
        """Discard the open window: it held an evaluation and shows nothing of steps."""
        if self.open:
            began_s = perf_counter()
            self._gpu.drop()
            self._end()
            self._pay(began_s)
            self._next, self._length = 0, max(2, self._length // 2)  # there may be few steps between two of them

    def totals(self) -> Dict[str, Any]:
        """Return the measurements of all windows so far; empty before the first has closed."""
        if not self._steps:
            return {}
        self._gpu.collect()
        window: Dict[str, Any] = {
            "steps": self._steps,
            "seconds": round(self._seconds, 6),
            "regions": {name: round(spent, 6) for name, spent in self._regions.items() if spent > 0},
        }
        if self._gpu.spans:
            window["gpu"] = {name: round(spent, 6) for name, spent in self._gpu.spans.items()}
            window["caught_up"] = [self._gpu.caught_up, self._gpu.marks]
        if self._copied:
            window["copied"] = {name: round(value, 6) for name, value in self._copied.items()}
        if self._sites:
            worst = sorted(self._sites.items(), key=lambda item: -item[1][1])[:_MOST_SITES]
            window["waits"] = [[site, int(count), round(spent, 6)] for site, (count, spent) in worst]
        if self._calls:
            window["calls"] = self._calls
        longest = sorted(self._lines.items(), key=lambda item: -item[1])[:_MOST_SITES]
        if longest:
            named: List[List[Any]] = [
                ["%s:%d" % (os.path.basename(name), line), round(spent, 6)] for (name, line), spent in longest
            ]
            window["lines"] = [each for each in named if each[1] > 0]
        return {"window": window}

    def _open(self, step: int) -> None:
        self.open, self._until = True, step + self._length
        self._first_s = self._first_s or perf_counter()
        self._sites_now, self._copied_now, self._calls_now, self._inside = {}, {}, {}, False
        self.given.window_opens()
        self._place()
        for place in self.also:
            place(True)
        if not self._recorder.compiles():
            self._lines_of.open()
        self._before = self._recorder.timeline.totals()
        self._caches = [(each, each.cache_info().currsize) for each in tables_of_functions()]
        self._opened_s = perf_counter()
        if self._torch.cuda.is_initialized():
            self._stream = self._torch.cuda.current_stream()
        self.mark("end")

    def _close(self, step: int) -> None:
        totals = self._recorder.timeline.totals()
        began_s = perf_counter()
        seconds = began_s - self._opened_s
        self._gpu.close()
        self._end()
        self._closed += 1
        if self._closed == 2:  # the first one was of steps that still warmed up
            self._seconds, self._steps, self._regions, self._sites, self._copied = 0.0, 0, {}, {}, {}
            self._lines, self._calls = {}, 0
        self._seconds += seconds
        self._steps += self._length
        for name, spent in totals.items():
            self._regions[name] = self._regions.get(name, 0.0) + spent - self._before[name]
        for line, spent in self._lines_of.spent.items():
            self._lines[line] = self._lines.get(line, 0.0) + spent
        self._calls += max(self._calls_now.values(), default=0)
        for key, value in self._copied_now.items():
            self._copied[key] = self._copied.get(key, 0) + value
        for site, (count, spent) in self._sites_now.items():
            before = self._sites.get(site, (0, 0.0))
            self._sites[site] = [before[0] + count, before[1] + spent]
        self._pay(began_s)
        now_s = perf_counter()
        self._due_s = now_s + max(_BETWEEN_S, now_s - self._first_s)
        self._next = step + _BETWEEN_STEPS

    def _end(self) -> None:
        self._lines_of.close()
        self.open = False
        self._placed.restore()
        for cache, size in self._caches:  # a table of torch's functions that was made now holds wrappers
            if cache.cache_info().currsize != size:
                cache.cache_clear()
        for place in self.also:
            place(False)
