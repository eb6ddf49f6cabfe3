"""Trackers without a key of this machine run offline."""

from pathlib import Path

import pytest

from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts
from seatrial.planning.container.env import without_login

WANDB = ScriptFacts(where={"wandb": "train.py:3"})


def job(tmp_path: Path, *secrets: str) -> Job:
    return Job(project=tmp_path, target=Target(kind="script", value="train.py"), secrets=secrets)


def test_without_a_key_wandb_is_offline_and_the_plan_shows_it(tmp_path: Path) -> None:
    env, [choice] = without_login(job(tmp_path), WANDB, {})
    assert env == {"WANDB_MODE": "offline"}
    assert choice.reason.startswith("train.py:3 imports wandb, and the run has no key: --secret WANDB_API_KEY")


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "WANDB_MODE"])
def test_a_mode_or_key_of_the_users_is_left_alone(tmp_path: Path, name: str) -> None:
    assert without_login(job(tmp_path), WANDB, {name: "x"}) == ({}, ())
    assert without_login(job(tmp_path, "WANDB_API_KEY"), WANDB, {}) == ({}, ())


def test_a_script_without_trackers_gets_no_variable(tmp_path: Path) -> None:
    assert without_login(job(tmp_path), ScriptFacts(), {}) == ({}, ())
