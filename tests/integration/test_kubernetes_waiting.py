"""Runs that a real cluster holds back: reported once with the next command, then continued without help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cli_project import Project
from engines import CLUSTER, READY
from pace import until
from seatrial.backends.kubernetes.client import Cluster

pytestmark = pytest.mark.kubernetes

NAMESPACE = "held"
PLACE = f"/api/v1/namespaces/{NAMESPACE}"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[None]:
    """Create a namespace for these tests alone: a quota would hold up others."""
    cluster.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    until(lambda: cluster.find(f"{PLACE}/serviceaccounts/default"))
    yield
    cluster.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture
def project(namespace: None, cluster_project: Project) -> Project:
    cluster_project.write("seatrial.toml", f'{READY}{CLUSTER}namespace = "{NAMESPACE}"\n')
    cluster_project.write("train.py", "print('it ran')\n")
    return cluster_project


def quota(cluster: Cluster, **hard: str) -> str:
    """Path of a ResourceQuota that its controller has taken note of."""
    manifest = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    cluster.create(f"{PLACE}/resourcequotas", manifest)
    until(lambda: "hard" in cluster.get(f"{PLACE}/resourcequotas/q").get("status", {}))
    return f"{PLACE}/resourcequotas/q"


def statuses(project: Project) -> dict[str, str]:
    """Return name → text of ``runs ls``."""
    lines = json.loads(project.cli("runs", "ls", "--json").stdout)
    return {line["name"]: f"{line['status']}: {line['outcome']}".removesuffix(": ") for line in lines}


def test_runs_that_wait_for_quota_go_on_when_it_is_raised(project: Project, cluster: Cluster) -> None:
    path = quota(cluster, pods="0")
    try:
        detached = project.run("train.py", "--gpus", "none", "--detach", "--name", "detached").stdout.strip()
        attached = project.start("train.py", "--gpus", "none", "--name", "attached")
        until(lambda: statuses(project) == dict.fromkeys(("detached", "attached"), "waiting: quota"))
        for _ in range(2):  # a short look shows it, too, and the record has it once
            reported = project.cli("runs", "logs", "detached").stderr
            assert "quota is used up" in reported and f"fix: kubectl -n {NAMESPACE} describe resourcequota" in reported
        cluster.patch(path, {"spec": {"hard": {"pods": "9"}}})
        # The Job's controller tries again in ever longer intervals, and at once when its Job has changed.
        until(lambda: cluster.get(path)["status"]["hard"]["pods"] == "9")
        for job in cluster.get(JOBS)["items"]:
            cluster.patch(f"{JOBS}/{job['metadata']['name']}", {"metadata": {"annotations": {"look": "again"}}})
        out, err = attached.communicate(timeout=240)
        assert attached.returncode == 0 and out.startswith("it ran\n"), err
        assert err.count("quota is used up") == 1, err
        until(lambda: cluster.get(f"{JOBS}/seatrial-{detached}").get("status", {}).get("succeeded"))
        assert all(printed.startswith("done: Finished") for printed in statuses(project).values())
    finally:
        cluster.delete(path)
    for run in project.runs:
        receipt = json.loads((run / "receipt.json").read_bytes())
        assert (receipt["exit_code"], receipt["exit_cause"]["id"]) == (0, "finished")
        assert (run / "events.jsonl").read_text().count('"k8s-quota"') == 1


@pytest.mark.slow
def test_a_run_that_is_stopped_while_it_waits(project: Project, cluster: Cluster) -> None:
    path = quota(cluster, **{"limits.cpu": "4"})
    try:
        project.run("train.py", "--gpus", "none", "--detach", "--name", "held")
        until(lambda: statuses(project) == {"held": "waiting: limits"})
        assert "fix: seatrial run … --cpus" in project.cli("runs", "logs", "held").stderr
        project.cli("runs", "stop", "held")
        assert statuses(project)["held"].startswith("stopped: Stopped by the user before it started, while it waited:")
        project.run("train.py", "--gpus", "none", "--cpus", "1", "--name", "limited")
    finally:
        cluster.delete(path)


#: What is wrong → the spec of a LimitRange, lines of seatrial.toml, text of runs ls, the fix.
HELD: dict[str, tuple[dict[str, Any] | None, str, str, str]] = {
    "limit range": (
        {"limits": [{"type": "Container", "max": {"memory": "64Mi"}}]},
        "",
        "limit range",
        f"kubectl -n {NAMESPACE} describe limitrange",
    ),
    "service account": (
        None,
        'service_account = "nobody"\n',
        "service account",
        f"kubectl -n {NAMESPACE} get serviceaccounts",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(HELD))
def test_what_is_refused_is_reported_in_a_word(project: Project, cluster: Cluster, name: str) -> None:
    spec, lines, word, fix = HELD[name]
    path = f"{PLACE}/limitranges"
    if spec is not None:
        cluster.create(path, {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "held"}, "spec": spec})
    try:
        project.write("seatrial.toml", (project.folder / "seatrial.toml").read_text() + lines)
        project.run("train.py", "--gpus", "none", "--detach", "--name", "held")
        until(lambda: statuses(project) == {"held": f"waiting: {word}"})
        assert f"fix: {fix}" in project.cli("runs", "logs", "held").stderr
        project.cli("runs", "stop", "held")
    finally:
        cluster.delete(f"{path}/held")
