"""The caller's MLflow server inside a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeBackend, a_plan
from seatrial.backends.kubernetes.backend import Kubernetes
from seatrial.job.model import Job, Target
from seatrial.job.plan import Choice
from seatrial.runs.trackers import CONTEXT, URI, tracker_pages, with_server
from seatrial.system.host import Host

REMOTE, LOOPBACK = "https://mlflow.example", "http://127.0.0.1:5000"


class Cluster(FakeBackend):
    traits = Kubernetes.traits


def made_for(
    project: Path, url: str, backend: Any = None, environ: dict[str, str] | None = None, **job: Any
) -> tuple[Job, tuple[Choice, ...], tuple[str, ...]]:
    made = Job(project=project, target=Target(kind="script", value="train.py"), **job)
    return with_server(made, backend or FakeBackend(), Host({URI: url, **(environ or {})}), "20261122-1")


def test_address_login_and_tag_reach_the_run(tmp_path: Path) -> None:
    login = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "hunter2hunter2"}
    job, choices, _ = made_for(tmp_path, REMOTE, environ=login)
    assert job.env[URI] == REMOTE and set(job.secrets) == set(login)
    assert json.loads(job.env[CONTEXT]) == {"seatrial.run": "20261122-1"}
    assert "hunter2hunter2" not in job.model_dump_json() + str(choices)
    assert made_for(tmp_path, REMOTE, env={CONTEXT: "mine"})[0].env[CONTEXT] == "mine"


@pytest.mark.parametrize(
    ("url", "job", "backend", "words"),
    [
        (REMOTE, {"network": "none"}, None, "its network is none"),
        (LOOPBACK, {}, None, "--network host"),
        (LOOPBACK, {}, Cluster("k8s"), "this machine alone"),
        ("https://me:secret@mlflow.example", {}, None, "contains a login"),
    ],
)
def test_unreachable_server_or_login_in_the_address_is_a_warning(
    tmp_path: Path, url: str, job: dict[str, Any], backend: Any, words: str
) -> None:
    made, _, warnings = made_for(tmp_path, url, backend, **job)
    assert URI not in made.env and CONTEXT not in made.env and not made.secrets
    assert len(warnings) == 1 and words in warnings[0] and "secret" not in warnings[0]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"env": {"WANDB_MODE": "offline"}}, "Weights & Biases, after: wandb sync wandb/offline-run-*"),
        ({"secrets": ("WANDB_API_KEY",)}, "Weights & Biases"),
    ],
    ids=["offline", "with a key"],
)
def test_weights_and_biases_join_mlflow_in_the_receipt(changes: dict[str, Any], name: str) -> None:
    plan = a_plan()
    env, secrets = {URI: REMOTE}, changes.get("secrets", ())
    agent = plan.agent._replace(env=changes.get("env", {}))
    plan = plan.changed(job=plan.job.changed(env=env, secrets=secrets), agent=agent)
    assert [page.name for page in tracker_pages(plan)] == ["MLflow", name]
