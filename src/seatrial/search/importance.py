"""How much each setting decides: Optuna's importance (PED-ANOVA, which needs no scikit-learn)."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence

from seatrial.search.objective import Objective
from seatrial.search.space import Space
from seatrial.search.trial import Trial

#: Trials that ended by themselves, before a share says more than chance.
FEWEST = 6


def importances(space: Space, objective: Objective | None, trials: Sequence[Trial]) -> dict[str, float]:
    """Name → share, the largest first, together 1; {} with too few trials, equal values, or without Optuna."""
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    different = len({trial.value for trial in done}) > 1
    if objective is None or len(done) < FEWEST or not different or importlib.util.find_spec("optuna") is None:
        return {}
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    from seatrial.search.optuna_engine import as_study

    study = as_study(space, objective, done)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is experimental
        try:
            shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
        except (ValueError, RuntimeError):  # trials that say nothing, by its own judgement
            return {}
    return {name: float(share) for name, share in shares.items()}
