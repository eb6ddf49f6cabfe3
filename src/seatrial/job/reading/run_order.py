"""The order in which a project's code runs: what the script reaches, under which conditions, and before which line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import NamedTuple

from seatrial.job.reading.constants import ParsedCall
from seatrial.job.reading.flow import CAUGHT, Tests, statements
from seatrial.job.reading.parsed_modules import Module, Unit

#: Methods of datasets and of Lightning's modules that a framework calls in every training.
_CALLED_LATER = ("__getitem__", "__iter__", "setup", "train_dataloader")


class Run(NamedTuple):
    """Hold a unit that another one runs; ``always`` and ``tests`` are those of the RunNode that runs it."""

    unit: Unit
    always: bool
    tests: Tests


class RunOrder:
    """Collects which unit runs which while code is read, and then answers what may have run.

    Args:
        start: the script's top. module_at: a file's module.
        callers: unit → calls that run it, to which ``note_call`` adds.

    Attributes:
        truth: whether a condition holds in this run; None for one that is not known.
    """

    def __init__(
        self, start: Unit, module_at: Callable[[Path], Module | None], callers: dict[Unit, list[ParsedCall]]
    ) -> None:
        self.start, self._module_at, self._callers = start, module_at, callers
        self.truth: Callable[[ast.expr, Unit], bool | None] = lambda *_: None
        self._runs: dict[Unit, list[Run]] = {}
        self._called: dict[Unit, list[tuple[int, Unit]]] = {}  # unit → (line, unit that it runs there)
        self._at_any_time: list[Unit] = []

    def note(self, unit: Unit, run: Iterable[Unit], *, always: bool, tests: Tests) -> None:
        """Note that ``unit`` calls or imports others; ``always`` and ``tests``: see RunNode."""
        self._runs.setdefault(unit, []).extend(Run(each, always, tests) for each in run)

    def note_call(self, call: ParsedCall, called: Iterable[Unit]) -> None:
        """Note the units that a call runs, and the methods that a framework calls of an object which it makes."""
        for each in called:
            self._callers.setdefault(each, []).append(call)
            if (at_once := self._runs_at_once(each)) is not None:
                owner, _, method = each[1].rpartition(".")
                later = [(each[0], f"{owner}.{name}") for name in _CALLED_LATER if method == "__init__"]
                self.note(call.unit, [each, *later], always=call.always and at_once, tests=call.tests)

    def _runs_at_once(self, unit: Unit) -> bool | None:
        """Return whether a call runs it at once, False for a generator; None for a coroutine or a doubled name."""
        module = self._module_at(unit[0])
        if module is None or not unit[1]:
            return None if module is None else True
        function = module.flow.functions[unit[1]]
        if isinstance(function, ast.AsyncFunctionDef) or unit[1] in module.flow.doubled:
            return None
        return not any(isinstance(each, ast.Yield | ast.YieldFrom) for each in statements(function.body))

    def join_branches(self) -> None:
        """Note units that both branches of a condition run as run without it."""
        for runs in self._runs.values():
            ways = {
                (each.unit, *((ast.dump(test), on) for test, on in each.tests)): each for each in runs if each.tests
            }
            for (_, *tests), (unit, _, nodes) in ways.items():
                for at, (test, on) in enumerate(tests):
                    if nodes and on and (unit, *tests[:at], (test, False), *tests[at + 1 :]) in ways:
                        runs.append(Run(unit, False, (*nodes[:at], *nodes[at + 1 :])))

    def settle(self, units: Iterable[Unit]) -> None:
        """Note at which lines units run others, once all calls are known; ``units``: those that make or check paths."""
        for unit, call in ((unit, call) for unit, each in self._callers.items() for call in each):
            self._called.setdefault(call.unit, []).append((call.node.lineno, unit))
        reached, uncalled = self.reached(), {*units, *self._called} - {self.start}
        uncalled = {each for each in uncalled if not self._callers.get(each)}
        self._at_any_time = [each for each in uncalled if each in reached or "." in each[1]]

    def reached(self, runs: Callable[[Unit, Run], bool] | None = None) -> set[Unit]:
        """Return the units that the script runs; ``runs``: whether a unit runs another one."""
        reached, pending = {self.start}, [self.start]
        while pending:
            unit = pending.pop()
            for run in self._runs.get(unit, ()):
                if run.unit not in reached and (runs is None or runs(unit, run)):
                    reached.add(run.unit)
                    pending.append(run.unit)
        return reached

    def holds(self, unit: Unit, tests: Tests) -> bool:
        """Return whether no condition is known to fail."""
        return all(self.truth(test, unit) in (None, wanted) for test, wanted in tests or ())

    def is_likely(self, unit: Unit, tests: Tests, lacks: Callable[..., bool] = lambda *_: False) -> bool:
        """Return whether no condition is in doubt; ``lacks``: whether a test cannot have a value in this run."""
        return tests is not None and all(
            self.truth(test, unit) is wanted or lacks(test, unit, not wanted) for test, wanted in tests
        )

    def may_run(self, *, tried: bool = False) -> Callable[[Unit, Tests], bool]:
        """Return a test of whether code may run: no condition around it is known to fail. ``tried``: also below try."""

        def may(unit: Unit, tests: Tests) -> bool:
            caught = tests is None or CAUGHT in tests
            return (tried or not caught) and self.holds(unit, tests)

        reached = self.reached(lambda unit, run: may(unit, run.tests))
        return lambda unit, tests: unit in reached and may(unit, tests)

    def ran_before(self, unit: Unit, line: int, *, at_any_time: bool) -> dict[Unit, float]:
        """Return unit → the line up to which it may have run when ``unit`` reaches ``line``. Call ``settle`` first.

        ``at_any_time``: units that no known call runs may have run whole.
        """
        ran: dict[Unit, float] = {}
        pending: list[tuple[Unit, float]] = [(unit, line), *((each, inf) for each in self._at_any_time if at_any_time)]
        while pending:
            where, end = pending.pop()
            if end <= ran.get(where, 0):
                continue
            ran[where] = end
            called = self._called.get(where, ())
            pending += ((callee, inf) for at, callee in called if at < end or (at == line and where == unit != callee))
            callers = self._callers.get(where, ()) if end < inf else ()
            pending += ((each.unit, each.node.lineno) for each in callers)
        return ran


def untried(tests: Tests) -> Tests:
    """Return the tests as if nothing caught errors."""
    return tests and tuple(each for each in tests if each is not CAUGHT)
