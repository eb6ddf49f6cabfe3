"""tpe: Optuna's sampler, asked with all trials so far each time. It keeps nothing between two questions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seatrial.search.objective import Objective
from seatrial.search.space import Choice, Dimension, Settings, Space
from seatrial.search.trial import Trial

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

#: Trials drawn at random before TPE has something to learn from; Optuna's own default.
#: Source: optuna.samplers.TPESampler, n_startup_trials.
_FIRST_AT_RANDOM = 10

#: Settings that TPE names again although they were tried, before one is drawn at random instead.
_MOST_REPEATS = 10


@dataclass(frozen=True)
class Tpe:
    """The engine of that name."""

    seed: int

    def ask(self, space: Space, objective: Objective | None, trials: Sequence[Trial]) -> Settings | None:
        """Settings that no trial has: a script with a fixed seed would only repeat its number."""
        if space.is_finite and len({tuple(trial.settings.items()) for trial in trials}) >= space.size:
            return None
        from optuna.samplers import TPESampler

        tried = [trial.settings for trial in trials]
        for repeat in range(_MOST_REPEATS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # experimental arguments
                sampler = TPESampler(
                    seed=(self.seed * 100_003 + len(trials)) * _MOST_REPEATS + repeat,
                    n_startup_trials=_FIRST_AT_RANDOM,
                    multivariate=True,
                    constant_liar=True,
                )
            asked = as_study(space, objective, trials, sampler).ask(distributions(space))
            settings = {one.name: as_text(one, asked.params[one.name]) for one in space.dimensions}
            if settings not in tried:
                return settings
        from seatrial.search.random_search import Random

        return Random(self.seed).ask(space, objective, trials)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's words."""
    return {dimension.name: _distribution(dimension) for dimension in space.dimensions}


def _distribution(dimension: Dimension) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Choice):
        order = _in_order(dimension)
        return IntDistribution(0, len(order) - 1) if order else CategoricalDistribution(dimension.values)
    if not dimension.whole:
        high = float(dimension.points()[-1]) if dimension.step else dimension.high
        return FloatDistribution(dimension.low, high, step=dimension.step, log=dimension.log)
    step = int(dimension.step or 1)
    low, high = int(dimension.low), int(dimension.high)
    return IntDistribution(low, low + (high - low) // step * step, step=step, log=dimension.log)


def _in_order(choice: Choice) -> list[str] | None:
    """A list of numbers from the smallest to the largest: between two good ones lies a better one. None: words."""
    try:
        ordered = sorted(choice.values, key=float)
    except ValueError:
        return None
    return ordered if len(ordered) > 2 and "nan" not in choice.values else None


def as_text(dimension: Dimension, value: Any) -> str:
    """A value of Optuna's as the script gets it."""
    if not isinstance(dimension, Choice):
        return dimension.text(value)
    order = _in_order(dimension)
    return order[value] if order else str(value)


def as_value(dimension: Dimension, text: str) -> Any:
    if isinstance(dimension, Choice):
        order = _in_order(dimension)
        return order.index(text) if order else text
    value = min(max(float(text), dimension.low), dimension.high)  # six digits may lie just outside
    return int(value) if dimension.whole else value


def as_study(
    space: Space, objective: Objective | None, trials: Sequence[Trial], sampler: BaseSampler | None = None
) -> optuna.Study:
    """A study in memory with these trials in it, in their order."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    lower = objective is None or objective.lower_is_better
    study = optuna.create_study(direction="minimize" if lower else "maximize", sampler=sampler)
    study.add_trials([_frozen(space, trial) for trial in trials])
    return study


def _frozen(space: Space, trial: Trial) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    states = {"done": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
    state = states.get(trial.state, TrialState.FAIL if trial.ending else TrialState.RUNNING)
    if state is TrialState.COMPLETE and trial.value is None:
        state = TrialState.FAIL
    known = [one for one in space.dimensions if one.name in trial.settings]
    return create_trial(
        state=state,
        value=trial.value if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        params={one.name: as_value(one, trial.settings[one.name]) for one in known},
        distributions={one.name: _distribution(one) for one in known},
        intermediate_values={report.step: report.value for report in trial.reports},
        system_attrs=dict(trial.notes),
    )
