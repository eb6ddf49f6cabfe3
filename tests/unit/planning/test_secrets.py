"""Secrets are handed over, and stand nowhere else."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from cluster_plans import a_cluster_plan
from fakes import load_job
from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.planning.secrets import check_secrets, remove_secrets
from seatrial.system.host import Host

CLUSTER = {"uid": 1234, "context": "test", "namespace": "default"}
SECRET = {"HF_TOKEN": "hf_0123456789"}


def job(*args: str, **env: str) -> Job:
    target = Target(kind="script", value="train.py", args=args)
    return Job(project=Path("/project"), target=target, env=env, secrets=("HF_TOKEN",))


@pytest.mark.parametrize(
    ("wanted", "environ", "refused"),
    [
        (job(), {}, "HF_TOKEN is not set"),
        (job("--token=hf_0123456789"), SECRET, "The value of the secret HF_TOKEN is in the target's arguments"),
        (job(OTHER="hf_0123456789"), SECRET, "The value of the secret HF_TOKEN is in --env"),
        (job(HF_TOKEN="hf_0123456789"), SECRET, None),  # its own name
        (job("--epochs", "5"), {"HF_TOKEN": "5"}, None),  # in many words by chance
    ],
)
def test_a_secret_is_set_and_stands_nowhere_else(wanted, environ, refused):
    with pytest.raises(UsageError, match=refused) if refused else nullcontext():
        check_secrets(wanted, Host(environ))


def test_the_watchdog_goes_with_a_pod(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    (tmp_path / "seatrial.toml").write_text('[watch]\nhang_after = "7m"\ncommand = "true"\n')
    loaded = load_job(tmp_path, {"target": "train.py", "on": "k8s", "kubernetes": CLUSTER}, cwd=tmp_path)
    monkeypatch.setattr("cluster_plans.load_job", lambda *_, **__: loaded)
    plan = a_cluster_plan(tmp_path)
    assert (plan.agent.hang_after_s, plan.agent.alert_command) == (420.0, "true")


def test_a_run_ends_where_no_folder_for_secrets_is_this_users(tmp_path, monkeypatch):
    (tmp_path / "taken").touch()
    monkeypatch.setattr(Host, "_runtime_candidates", lambda host: [tmp_path / "taken"])
    remove_secrets("20261121-000001-aaaa", Host({}))
