"""What was asked of ``seatrial sweep``: flags over ``[sweep]`` of the project's file, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.errors import UsageError
from seatrial.job.sweep_table import SweepTable
from seatrial.search.engines import ENGINES, PRUNERS
from seatrial.search.objective import Objective, parse_objective
from seatrial.search.space import Space, from_table, parse_space

#: A grid of more is a search, which has better tools; --trials allows more.
MAX_GRID = 200


@dataclass(frozen=True)
class Request:
    """A checked request.

    Attributes:
        parallel: None for auto.
        budget_s: of this process, not of the study.
        name: of the study, as typed; None: made from what it searches.
    """

    space: Space
    search: str = "grid"
    objective: Objective | None = None
    prune: str = "none"
    trials: int | None = None
    budget_s: float | None = None
    parallel: int | None = 1
    seed: int = 0
    name: str | None = None


@dataclass(frozen=True)
class Flags:
    """As typed; None where nothing was."""

    settings: Sequence[str] = ()
    search: str | None = None
    metric: str | None = None
    metric_from: str | None = None
    prune: str | None = None
    trials: int | None = None
    budget_s: float | None = None
    parallel: str | None = None
    seed: int | None = None
    name: str | None = None


def make_request(flags: Flags, table: SweepTable) -> Request:
    """Raises UsageError, naming the flag and what would be right."""
    typed = list(flags.settings)
    named = {text.partition("=")[0] for text in typed}
    typed += from_table({name: value for name, value in table.set.items() if name not in named})
    space = parse_space(typed)
    metric, pattern = flags.metric or table.metric, flags.metric_from or table.metric_from
    objective = parse_objective(metric, pattern) if metric else None
    if pattern and objective is None:
        raise UsageError(
            "--metric-from needs --metric: the number's name, and whether more or less is better",
            run=f"seatrial sweep … --metric accuracy:max --metric-from '{pattern}'",
        )
    search = flags.search or table.search or "grid"
    prune = flags.prune or table.prune or ("asha" if search == "tpe" else "none")
    _check_names(search, prune, objective)
    trials = flags.trials or table.trials
    budget_s = flags.budget_s or table.budget_s
    _check_size(space, search, trials, budget_s)
    seed = flags.seed if flags.seed is not None else table.seed or 0
    parallel = parse_parallel(flags.parallel or table.parallel or 1)
    return Request(space, search, objective, prune, trials, budget_s, parallel, seed, flags.name)


def parse_parallel(value: str | int) -> int | None:
    """A number of trials at once; None for ``auto``. Raises UsageError."""
    if str(value) == "auto":
        return None
    if not str(value).isdigit() or int(value) < 1:
        raise UsageError(
            f"--parallel {value} is neither a number of trials nor auto", run="seatrial sweep … --parallel auto"
        )
    return int(value)


def _check_names(search: str, prune: str, objective: Objective | None) -> None:
    if search not in ENGINES:
        raise UsageError(f"There is no search {search!r}: {', '.join(ENGINES)}", run="seatrial sweep … --search tpe")
    if prune not in (*PRUNERS, "none"):
        raise UsageError(
            f"There is no way {prune!r} to prune: {', '.join(PRUNERS)} or none", run="seatrial sweep … --prune asha"
        )
    if objective is None and (search == "tpe" or prune != "none"):
        flag = "--search tpe" if search == "tpe" else f"--prune {prune}"
        raise UsageError(
            f"{flag} needs a metric to compare trials by", run=f"seatrial sweep … {flag} --metric accuracy:max"
        )


def _check_size(space: Space, search: str, trials: int | None, budget_s: float | None) -> None:
    endless = [dimension for dimension in space.dimensions if not dimension.is_finite]
    if search == "grid" and endless:
        raise UsageError(
            f"A grid needs single values, and {endless[0].name} is a range without a step",
            run=f"seatrial sweep … --search random --trials 20 --set {endless[0]}",
        )
    if search == "grid" and trials is None and space.size > MAX_GRID:
        raise UsageError(
            f"{space.size} runs are too many for a grid: at most {MAX_GRID} without --trials",
            run="seatrial sweep … --search tpe --trials 40 --metric accuracy:max",
        )
    if search != "grid" and endless and trials is None and budget_s is None:
        raise UsageError(
            f"--search {search} does not say when to end", run=f"seatrial sweep … --search {search} --trials 40"
        )
