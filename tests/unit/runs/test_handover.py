"""Secrets are handed over, and stand nowhere else."""

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.events import WEBHOOK_SECRET
from seatrial.job.model import Job, Target, WatchOptions
from seatrial.runs.handover import check_secrets, hide_webhook, targets_secrets

SECRET = {"HF_TOKEN": "hf_0123456789"}


def job(*args: str, **env: str) -> Job:
    target = Target(kind="script", value="train.py", args=args)
    return Job(project=Path("/project"), target=target, env=env, secrets=("HF_TOKEN",))


def test_a_secret_that_is_not_set():
    with pytest.raises(UsageError, match="HF_TOKEN is not set"):
        check_secrets(job(), {})


@pytest.mark.parametrize("leaking", [job("--token=hf_0123456789"), job(OTHER="hf_0123456789")])
def test_a_secret_where_the_plan_would_tell_it(leaking):
    with pytest.raises(UsageError, match="The value of the secret HF_TOKEN stands in"):
        check_secrets(leaking, SECRET)


def test_its_own_name_and_short_values_are_fine():
    check_secrets(job(HF_TOKEN="hf_0123456789"), SECRET)
    check_secrets(job("--epochs", "5"), {"HF_TOKEN": "5"})


def test_a_webhook_travels_as_a_secret_that_the_target_does_not_get():
    url = "https://user:word@hooks.example.org:8443/services/token?key=1"
    hidden, environ = hide_webhook(job().model_copy(update={"watch": WatchOptions(webhook=url)}), SECRET)
    assert hidden.watch.webhook == "https://hooks.example.org/…" and url not in hidden.model_dump_json()
    assert hidden.secrets == ("HF_TOKEN", WEBHOOK_SECRET) and targets_secrets(hidden) == ("HF_TOKEN",)
    assert environ == {**SECRET, WEBHOOK_SECRET: url}
    assert hide_webhook(job(), SECRET) == (job(), SECRET)
