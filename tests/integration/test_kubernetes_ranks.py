"""Several pods of one run on a real cluster: they meet by the Service's name, and survive the loss of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli_project import CONFIG, Project
from engines import CLUSTER
from seatrial.backends.kubernetes.client import Cluster

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.usefixtures("indexed_jobs"),
]

NODE = "/api/v1/nodes/test-node"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def project(cluster_project: Project, tmp_path: Path) -> Project:
    """The recipe's own image, models on a folder of the node, pods of another user than its owner."""
    models = tmp_path / "models"
    models.mkdir()
    models.chmod(0o777)
    cluster_project.write("seatrial.toml", f'{CONFIG}{CLUSTER}models = "hostpath:{models}"\n')
    return cluster_project


def pods(cluster: Cluster, run_id: str) -> dict[str, str]:
    """Node of the run → its newest pod's name."""
    items = cluster.get(PODS, labelSelector=f"seatrial.run={run_id}")["items"]
    by_age = sorted(items, key=lambda item: str(item["metadata"]["creationTimestamp"]))
    index = "batch.kubernetes.io/job-completion-index"
    return {item["metadata"]["annotations"][index]: item["metadata"]["name"] for item in by_age}


def listed(project: Project) -> dict[str, object]:
    """The newest run, as ``runs ls`` has it."""
    newest: dict[str, object] = json.loads(project.cli("runs", "ls", "--json").stdout)[0]
    return newest


@pytest.mark.slow
def test_two_pods_then_one_then_two(project: Project, cluster: Cluster) -> None:
    """Elastic: while the node takes no pods, the one that is left trains alone; then the other joins it."""
    project.write("seatrial.toml", (project.folder / "seatrial.toml").read_text() + "min_nodes = 1\n")
    started = project.run("digits", "--gpus", "none", "--nodes", "2", "--detach", "--", "--epochs", "500")
    run_id = started.stdout.strip()

    def printed(text: str, times: int = 1) -> bool:
        return project.cli("runs", "logs", run_id).stdout.count(text) >= times

    try:
        project.wait_for(lambda: printed("]: epoch 2:"))
        cluster.patch(NODE, {"spec": {"unschedulable": True}})
        cluster.delete(f"{PODS}/{pods(cluster, run_id)['1']}", grace_s=0)
        project.wait_for(lambda: printed("on each of 1 rank,"))
        cluster.patch(NODE, {"spec": {"unschedulable": None}})
        project.wait_for(lambda: printed("on each of 2 ranks", 2))
        assert printed("resumed from /seatrial/run/checkpoints", 2)
        assert printed("]: epoch 1:") and not printed("]: epoch 1:", 2), "it began anew"
    finally:
        cluster.patch(NODE, {"spec": {"unschedulable": None}})
        project.cli("runs", "stop", run_id, exit_code=None)


def test_two_pods_train_and_one_that_is_killed_comes_back(project: Project, cluster: Cluster, tmp_path: Path) -> None:
    started = project.run("digits", "--gpus", "none", "--nodes", "2", "--detach", "--", "--epochs", "15")
    run_id = started.stdout.strip()

    def trained(epoch: int) -> bool:
        return f"[rank0]: epoch {epoch}:" in project.cli("runs", "logs", run_id).stdout

    project.wait_for(lambda: trained(2))
    killed = pods(cluster, run_id)["1"]
    cluster.delete(f"{PODS}/{killed}", grace_s=0)
    # Any end: a run that failed never succeeds, and its receipt shows why.
    project.wait_for(lambda: listed(project)["status"] in ("done", "failed", "stopped"), 150)
    receipt = project.receipt()
    assert (receipt["exit_code"], receipt["exit_cause"]["id"]) == (0, "finished"), project.output("stderr")
    output = project.output()
    assert "batch 64 on each of 2 ranks, 128 together" in output
    assert "[rank0]: resumed from /seatrial/run/checkpoints: epoch " in output, "it began anew"
    assert output.count("[rank0]: epoch 1:") == 1
    assert "[rank0]: epoch 15:" in output
    assert {event["node"] for event in project.events("agent.finished")} == {0, 1}
    assert len(project.events("agent.started")) > 2, "nobody started again"
    of_first = project.cli("runs", "logs", run_id, "--rank", "0").stdout
    assert of_first and all(line.startswith("[rank0]: ") for line in of_first.splitlines())
    project.cli("runs", "logs", run_id, "--rank", "2", exit_code=2)
    assert (tmp_path / "models" / "digits.safetensors").stat().st_uid == 1234
    saved = [one for one in receipt["criteria"] if one["id"] == "model-saved"]
    assert saved[0]["verdict"] == "pass" and "digits.pth" in saved[0]["evidence"], saved
    assert receipt["header"]["image"]["digest"].startswith("sha256:")
    pod_notes = [event["message"] for event in project.events("note") if " is running" in event["message"]]
    assert pod_notes and len(pod_notes) == len(set(pod_notes))
