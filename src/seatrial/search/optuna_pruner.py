"""asha and median: Optuna's pruners, asked with all trials so far after each report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from seatrial.search.engine import Behind
from seatrial.search.objective import Objective
from seatrial.search.optuna_engine import as_study
from seatrial.search.space import Space
from seatrial.search.trial import Trial

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

#: Of the trials at a rung the best so many go on. Source: Li et al., "A System for Massively Parallel Hyperparameter
#: Tuning" (2020), which uses 4; Optuna's default, too.
_REDUCTION = 4

#: Reports before the first judgement. After one the settings that end best are often not ahead: on digits, judged then,
#: the grid's best setting was pruned in nine of ten searches; after two, in one (docs/search.md, 2026-11-22).
_FIRST_RUNG = 2

#: Trials that the median is of, at least; Optuna's default.
_MEDIAN_OF = 5


@dataclass(frozen=True)
class OptunaPruner:
    """The pruners of those names. ASHA: at 2, 8, 32 … reports only the best quarter goes on."""

    kind: Literal["asha", "median"]

    def judge(self, objective: Objective, trials: Sequence[Trial], trial: Trial) -> Behind:
        study = as_study(Space(()), objective, trials)
        frozen = study.trials[trial.number]
        falls = self._pruner().prune(study, frozen)
        notes = dict(study.trials[trial.number].system_attrs)
        if not falls or trial.value is None:
            return Behind(None, notes)
        others = sum(len(one.reports) >= len(trial.reports) for one in trials) - 1
        after = f"after {len(trial.reports)} report{'s' * (len(trial.reports) != 1)}"
        rank = "not in the best quarter" if self.kind == "asha" else "below the median"
        return Behind(f"{objective.metric} {trial.value:.4g} {after} is {rank} of {others + 1} trials", notes)

    def _pruner(self) -> BasePruner:
        from optuna.pruners import MedianPruner, SuccessiveHalvingPruner

        if self.kind == "median":
            return MedianPruner(n_startup_trials=_MEDIAN_OF, n_warmup_steps=1)
        return SuccessiveHalvingPruner(min_resource=_FIRST_RUNG, reduction_factor=_REDUCTION)
