"""Read the request of ``seatrial sweep``: flags over ``[sweep]`` of the project's file, checked first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from seatrial.errors import UsageError
from seatrial.job.keys import NAME, read_pattern
from seatrial.job.tables import SweepTable
from seatrial.search.space import Space, from_table, parse_space
from seatrial.system.command import install_extra
from seatrial.system.text import shown

#: A grid of more is a search, which has better tools; --trials allows more.
MAX_GRID = 200
#: Trials at once; each has a thread that follows it.
MAX_PARALLEL = 256
#: Behind --search and --prune; Optuna has the samplers and pruners.
SEARCHES, PRUNERS = ("grid", "random", "tpe"), ("asha", "median")


@dataclass(frozen=True)
class Objective:
    """Attributes:
    metric: its name among what the script reports; with a pattern it is only a name.
    pattern: of the output's lines, whose first group is the value; None: from $SEATRIAL_EVENTS.
    """

    metric: str
    direction: Literal["max", "min"]
    pattern: str | None = None

    def is_better(self, one: float, other: float) -> bool:
        return one > other if self.direction == "max" else one < other

    @property
    def lower_is_better(self) -> bool:
        return self.direction == "min"

    def __str__(self) -> str:
        return f"{self.metric}:{self.direction}"


def parse_objective(text: str, pattern: str | None = None) -> Objective:
    """Parse ``NAME:max`` or ``NAME:min``. Raises UsageError."""
    name, _, direction = text.rpartition(":")
    if not name.strip() or direction not in ("max", "min"):
        bare = (name or text).strip(": ") or "accuracy"
        is_error = re.search("loss|error|perplexity|ppl|mse|mae|rmse|wer|cer", bare)
        first, other = ("min", "max") if is_error else ("max", "min")
        run = f"seatrial sweep … --metric {bare}:{first}   # or {bare}:{other}"
        raise UsageError(f"--metric {text!r} names no direction: max or min", run=run)
    if pattern is not None:
        try:
            read_pattern(pattern)
        except ValueError as error:
            example = rf"seatrial sweep … --metric {name}:max --metric-from '{name}: ([\d.]+)'"
            raise UsageError(f"--metric-from: {error}", run=example) from None
    return Objective(name.strip(), "max" if direction == "max" else "min", pattern)


@dataclass(frozen=True)
class Definition:
    """The fixed part of a study: what it searches, as typed; ``job``: its JSON, which --resume runs again.

    ``trials``: maximum number; None for as many as there are.
    """

    name: str
    title: str
    space: tuple[str, ...]
    search: str
    objective: str | None = None
    pattern: str | None = None
    prune: str = "none"
    trials: int | None = None
    seed: int = 0
    job: str = ""

    def parsed_space(self) -> Space:
        return parse_space(self.space)

    def parsed_objective(self) -> Objective | None:
        return parse_objective(self.objective, self.pattern) if self.objective else None


def define(table: SweepTable, settings: Sequence[str] = (), name: str | None = None) -> Definition:
    """Check ``[sweep]``, with flags in place of its keys, and the ``--set`` flags, which replace its settings by name.

    Title and job are added with the job, and without ``name`` the name, which is made of all of it. Raises UsageError.
    """
    named = {text.partition("=")[0].replace("-", "_") for text in settings}
    of_table = {key: value for key, value in table.set.items() if key.replace("-", "_") not in named}
    space = parse_space([*settings, *from_table(of_table)])
    objective = parse_objective(table.metric, table.metric_from) if table.metric is not None else None
    if table.metric_from is not None and objective is None:
        run = f"seatrial sweep … --metric accuracy:max --metric-from '{table.metric_from}'"
        raise UsageError("--metric-from needs --metric: the number's name, and whether more or less is better", run=run)
    search = "grid" if table.search is None else table.search
    prune = ("asha" if search == "tpe" else "none") if table.prune is None else table.prune
    _check_names(search, prune, objective)
    _check_size(space, search, table.trials, table.budget_s)
    if name is not None and not re.fullmatch(NAME, name):
        message = f"--study {name!r} is not a name: letters, digits, . _ -"
        raise UsageError(message, run="seatrial sweep … --study lr-search")
    typed, metric = tuple(space.typed()), None if objective is None else str(objective)
    pattern, seed = table.metric_from, table.seed or 0
    return Definition(name or "", "", typed, search, metric, pattern, prune, table.trials, seed)


def parse_parallel(value: str | int | None) -> int | None:
    """Return a number of trials at once, 1 if none is given; None for ``auto``. Raises UsageError."""
    if value == "auto" or value is None:
        return 1 if value is None else None
    if not re.fullmatch("[0-9]{1,3}", str(value)) or not 1 <= int(str(value)) <= MAX_PARALLEL:
        problem = f"--parallel {shown(value)} is neither a number of trials, {MAX_PARALLEL} at most, nor auto"
        raise UsageError(problem, run="seatrial sweep … --parallel auto")
    return int(str(value))


def _check_names(search: str, prune: str, objective: Objective | None) -> None:
    if search not in SEARCHES:
        problem = f"Unknown search {search!r}; available: {', '.join(SEARCHES)}"
        raise UsageError(problem, run="seatrial sweep … --search tpe")
    if prune not in (*PRUNERS, "none"):
        problem = f"Unknown pruner {prune!r}; available: {', '.join(PRUNERS)}, none"
        raise UsageError(problem, run="seatrial sweep … --prune asha")
    if objective is None and (search == "tpe" or prune != "none"):
        flag = "--search tpe" if search == "tpe" else f"--prune {prune}"
        run = f"seatrial sweep … {flag} --metric accuracy:max"
        raise UsageError(f"{flag} needs a metric to compare trials by", run=run)


def _check_size(space: Space, search: str, trials: int | None, budget_s: float | None) -> None:
    endless = [dimension for dimension in space.dimensions if not dimension.is_finite]
    if search == "grid" and endless:
        run = f"seatrial sweep … --search random --trials 20 --set {endless[0]}"
        raise UsageError(f"A grid needs single values, and {endless[0].name} is a range without a step", run=run)
    if search == "grid" and trials is None and space.size > MAX_GRID:
        run = "seatrial sweep … --search tpe --trials 40 --metric accuracy:max"
        raise UsageError(f"{space.size} runs are too many for a grid: at most {MAX_GRID} without --trials", run=run)
    if search != "grid" and endless and trials is None and budget_s is None:
        run = f"seatrial sweep … --search {search} --trials 40"
        raise UsageError(f"--search {search} needs a limit: --trials or --budget", run=run)


def require_optuna() -> None:
    """Check that the extra ``search`` is installed. Raises UsageError."""
    if find_spec("optuna") is None:
        raise UsageError("seatrial sweep needs Optuna, which is not installed", run=install_extra("search"))
