from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Criteria, Job, Target
from seatrial.job.tables import Changes, Tuning
from seatrial.runs.tuning import tuning_job


def job(**keys: Any) -> Job:
    fields: dict[str, Any] = {"project": Path("/p"), "target": Target(kind="script", value="train.py")}
    return Job(**{**fields, **keys})


def test_it_is_the_script_as_it_is_without_its_criteria_and_without_earlier_changes() -> None:
    made = tuning_job(job(tune=Changes(workers=4), criteria=Criteria(metrics={"acc": ">= 1"})), Tuning(steps=20))
    assert made.tuning is not None and made.tuning.steps == 20
    assert made.tune == Changes() and made.criteria.metrics == {} and not made.criteria.model_fields_set


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"target": Target(kind="recipe", value="mnist")}, "recipe"),
        ({"nodes": 2}, "one machine"),
        ({"no_hook": True}, "--no-hook"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_the_next_command(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        tuning_job(job(**keys), Tuning())
    assert (caught.value.run or "").startswith("seatrial tune")
