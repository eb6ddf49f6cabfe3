"""Ray Tune's side of a study: its OptunaSearch, or an engine of ours, chooses; the study has every trial first."""

from __future__ import annotations

import json
from typing import Any

from ray.tune import Stopper
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch

from seatrial.search.on_ray.trainable import ENDED, OBJECTIVE, REPORTS
from seatrial.search.optuna_engine import as_text, as_value, distributions
from seatrial.search.search import Search
from seatrial.search.space import Settings, Space
from seatrial.search.trial import Trial

#: Of the trials at a rung the best so many go on, as with our own asha.
_REDUCTION = 4

#: Reports after which trials are compared for the first time, as with our own.
_FIRST_RUNG = 2

#: Reports of one trial that ASHA has rungs for; a script with more is not stopped for it.
_MOST_REPORTS = _FIRST_RUNG * _REDUCTION**12

#: Trials that a median is of, as with our own.
_MEDIAN_OF = 5


class StudySearcher(Searcher):  # type: ignore[misc]
    """Asks Ray's OptunaSearch for tpe, our engine otherwise; a trial that waits to be run again goes first.

    Args:
        begun: filled with the numbers of the trials that Ray was given.
        mailbox: is told which trials Ray has stopped.
    """

    def __init__(self, search: Search, begun: set[int], mailbox: Any) -> None:
        mode = None if search.objective is None else search.objective.direction
        super().__init__(metric=OBJECTIVE if mode else None, mode=mode)
        self._search, self._begun, self._mailbox = search, begun, mailbox
        self._numbers: dict[str, int] = {}
        tpe = search.study.definition.search == "tpe"
        self._optuna = optuna_search(search, mode or "max") if tpe else None

    def suggest(self, trial_id: str) -> Any:
        """Raises whatever the study's file raises: the search ends then."""
        search = self._search
        if search.time_is_over():
            return Searcher.FINISHED
        trials = search.study.trials()
        waits = any(one.state == "waiting" for one in trials)
        if not waits and search.expected is not None and len(trials) >= search.expected:
            return Searcher.FINISHED
        if self._optuna is None:
            trial = search.ask()
        else:
            chosen = settings_of(search.space, self._optuna.suggest(trial_id))
            trial = search.study.ask(lambda others: chosen, most=search.expected)
        if trial is None:
            return Searcher.FINISHED
        self._begun.add(trial.number)
        self._numbers[trial_id] = trial.number
        return {"order": json.dumps(self._order(trial))}

    def _order(self, trial: Trial) -> dict[str, Any]:
        search, objective = self._search, self._search.objective
        return {
            "job": search.job_of(trial).model_dump_json(),
            "number": trial.number,
            "settings": trial.settings,
            "objective": None if objective is None else [objective.metric, objective.direction, objective.pattern],
            "told": {"series": search.study.get("series")},
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if self._optuna is not None and OBJECTIVE in result:
            self._optuna.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ended, or stopped by the scheduler: then its run is told at once, and not when its worker is used again."""
        reported = result if result is not None and OBJECTIVE in result else None
        search, number = self._search, self._numbers.get(trial_id)
        if reported is not None and not reported[ENDED] and not search.time_is_over():
            name = search.objective.metric if search.objective is not None else ""
            standing = f"{name} {reported[OBJECTIVE]:.4g} after {reported[REPORTS]} reports is behind"
            self._mailbox.stop.remote(number, "pruner", standing)
        if self._optuna is not None:
            self._optuna.on_trial_complete(trial_id, reported, error or reported is None)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study is what a later searcher goes on from."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing."""

    def __reduce__(self) -> Any:
        return _nothing, ()


def optuna_search(search: Search, mode: str) -> Any:
    """OptunaSearch that knows the study's trials; those that wait are what it names first."""
    import optuna
    from optuna.samplers import TPESampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, trials = search.space, search.study.trials()
    waiting = [_params(space, trial.settings) for trial in trials if trial.state == "waiting"]
    made = OptunaSearch(
        space=distributions(space),
        metric=OBJECTIVE,
        mode=mode,
        points_to_evaluate=waiting or None,
        sampler=TPESampler(seed=search.study.definition.seed + len(trials), multivariate=True, constant_liar=True),
    )
    for trial in trials:
        if trial.ending is not None and trial.value is not None and trial.state in ("done", "pruned"):
            values = [report.value for report in trial.reports]
            pruned = trial.state == "pruned"
            made.add_evaluated_point(
                _params(space, trial.settings), trial.value, pruned=pruned, intermediate_values=values or None
            )
    return made


def settings_of(space: Space, params: dict[str, Any]) -> Settings:
    """What OptunaSearch names, as the script gets it."""
    return {one.name: as_text(one, params[one.name]) for one in space.dimensions}


def _params(space: Space, settings: Settings) -> dict[str, Any]:
    return {one.name: as_value(one, settings[one.name]) for one in space.dimensions}


def scheduler(search: Search) -> TrialScheduler:
    """What stops trials that fall behind, by the name behind --prune."""
    prune = search.study.definition.prune
    if prune == "none" or search.objective is None:
        return FIFOScheduler()
    compared = {"time_attr": REPORTS, "metric": OBJECTIVE, "mode": search.objective.direction}
    if prune == "median":
        return MedianStoppingRule(grace_period=2, min_samples_required=_MEDIAN_OF, **compared)
    return ASHAScheduler(max_t=_MOST_REPORTS, grace_period=_FIRST_RUNG, reduction_factor=_REDUCTION, **compared)


class Over(Stopper):  # type: ignore[misc]
    """Ends Ray's side when the search is over."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._search.time_is_over()

    def __reduce__(self) -> Any:
        return _nothing, ()


def _nothing() -> None:
    """What Ray's copy of a search on the disk has in place of ours."""
