"""Secrets are handed over, and stand nowhere else."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from cluster_plans import a_cluster_plan
from fakes import load_job
from seatrial.errors import UsageError
from seatrial.job.model import Job, Target, WatchOptions
from seatrial.planning.secrets import WEBHOOK_SECRET, check_secrets, hide_webhook, remove_secrets, targets_secrets
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


def test_a_webhook_travels_as_a_secret_that_the_target_does_not_get():
    url = "https://user:word@hooks.example.org:8443/services/token?key=1"
    hidden, environ = hide_webhook(job().model_copy(update={"watch": WatchOptions(webhook=url)}), Host(SECRET))
    assert hidden.watch.webhook == "https://hooks.example.org/…" and url not in hidden.model_dump_json()
    assert hidden.secrets == ("HF_TOKEN", WEBHOOK_SECRET) and targets_secrets(hidden) == ("HF_TOKEN",)
    assert environ.env == SECRET and environ.secrets == {WEBHOOK_SECRET: url}
    assert hide_webhook(job(), host := Host(SECRET)) == (job(), host)


def test_the_watchdog_goes_with_a_pod_and_its_webhook_as_a_secret(tmp_path, monkeypatch):
    url = "https://hooks.example.org/services/token"
    (tmp_path / "train.py").touch()
    (tmp_path / "seatrial.toml").write_text(f'[watch]\nhang_after = "7m"\ncommand = "true"\nwebhook = "{url}"\n')
    loaded = load_job(tmp_path, {"target": "train.py", "on": "k8s", "kubernetes": CLUSTER}, cwd=tmp_path)
    hidden, environ = hide_webhook(loaded, Host({}))
    monkeypatch.setattr("cluster_plans.load_job", lambda *_, **__: hidden)
    plan = a_cluster_plan(tmp_path)
    assert (plan.agent.hang_after_s, plan.agent.alert_command) == (420.0, "true")
    assert plan.agent.alert_webhook == WEBHOOK_SECRET and plan.agent.secrets == ()
    assert plan.cluster.secrets == (WEBHOOK_SECRET,) and environ.secret(WEBHOOK_SECRET) == url
    assert plan.agent.secrets_dir is not None and url not in plan.model_dump_json()


def test_a_run_ends_where_no_folder_for_secrets_is_this_users(tmp_path, monkeypatch):
    (tmp_path / "taken").touch()
    monkeypatch.setattr(Host, "_runtime_candidates", lambda host: [tmp_path / "taken"])
    remove_secrets("20261121-000001-aaaa", Host({}))
