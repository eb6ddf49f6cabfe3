"""The engines and pruners by name: a visible table. Optuna's are loaded where they are asked for."""

from __future__ import annotations

from collections.abc import Callable

from seatrial.errors import UsageError
from seatrial.search.engine import Engine, Pruner
from seatrial.search.grid import Grid
from seatrial.search.random_search import Random


def _tpe(seed: int) -> Engine:
    _require_optuna("--search tpe", "--search random")
    from seatrial.search.optuna_engine import Tpe

    return Tpe(seed)


def _asha() -> Pruner:
    _require_optuna("--prune asha", "--prune none")
    from seatrial.search.optuna_pruner import OptunaPruner

    return OptunaPruner("asha")


def _median() -> Pruner:
    _require_optuna("--prune median", "--prune none")
    from seatrial.search.optuna_pruner import OptunaPruner

    return OptunaPruner("median")


#: Name behind --search → the engine, from a seed.
ENGINES: dict[str, Callable[[int], Engine]] = {"grid": lambda seed: Grid(), "random": Random, "tpe": _tpe}

#: Name behind --prune → the pruner; none has none.
PRUNERS: dict[str, Callable[[], Pruner]] = {"asha": _asha, "median": _median}


def _require_optuna(what: str, instead: str) -> None:
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise UsageError(
            f"{what} needs Optuna, which is not installed",
            run=f"pip install 'seatrial[search]'   # or, without it: seatrial sweep … {instead}",
        )
