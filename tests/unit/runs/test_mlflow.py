"""The caller's MLflow server inside a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeBackend, a_plan
from seatrial.backends.kubernetes.backend import Kubernetes
from seatrial.job.model import Job, Target
from seatrial.runs.ending import tracker_pages
from seatrial.runs.mlflow import CONTEXT, URI, Tracked, tracked
from seatrial.system.host import Host

REMOTE, LOOPBACK = "https://mlflow.example", "http://127.0.0.1:5000"


class Cluster(FakeBackend):
    traits = Kubernetes.traits


def with_server(
    project: Path, url: str, backend: Any = None, environ: dict[str, str] | None = None, **job: Any
) -> Tracked:
    target = job.pop("target", Target(kind="script", value="train.py"))
    made = Job(project=project, target=target, **job)
    return tracked(made, backend or FakeBackend(), Host({URI: url, **(environ or {})}))


def test_address_login_and_tag_reach_the_run(tmp_path: Path) -> None:
    login = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "hunter2hunter2"}
    made = with_server(tmp_path, REMOTE, environ=login)
    assert made.job.env[URI] == REMOTE and set(made.job.secrets) == set(login)
    job = made.for_run("20261122-1")
    assert json.loads(job.env[CONTEXT]) == {"seatrial.run": "20261122-1"}
    assert "hunter2hunter2" not in job.model_dump_json() + str(made.choices)


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
    made = with_server(tmp_path, url, backend, **job)
    assert URI not in made.job.env and not made.job.secrets and made.for_run("x") is made.job
    assert len(made.warnings) == 1 and words in made.warnings[0] and "secret" not in made.warnings[0]


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
