"""Pulling an image onto nodes ahead of a run: which nodes, with which pods, and what is said of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster_api import FORBIDDEN, cluster_api, version
from cluster_plans import a_cluster_plan
from manifest_rules import VERSIONS, violations
from seatrial.backends.kubernetes import prepull as prepulling
from seatrial.backends.kubernetes.prepull import LABEL, nodes_for, prepull, pull_pods
from seatrial.backends.kubernetes.survey import Node
from seatrial.errors import EngineError
from seatrial.job.cluster import ClusterPlan

GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "vision", "effect": "NoSchedule"}
PODS = "/api/v1/namespaces/default/pods"


def a_plan(folder: Path, **flags: Any) -> ClusterPlan:
    cluster = a_cluster_plan(folder, **{"gpus": "1", **flags}).cluster
    assert cluster is not None
    return cluster


def test_the_nodes_are_those_that_a_pod_may_land_on(tmp_path: Path) -> None:
    h200 = {"gpu": "h200"}
    nodes = [
        Node("good", 8, 8, ready=True, labels=h200, taints=(GPU_TAINT,)),
        Node("team", 8, 8, ready=True, labels=h200, taints=(GPU_TAINT, TEAM)),
        Node("preferred", 8, 0, ready=True, labels=h200, taints=({"key": "spot", "effect": "PreferNoSchedule"},)),
        Node("spot", 8, 8, ready=True, labels=h200, taints=({"key": "spot", "effect": "NoSchedule"},)),
        Node("evicting", 8, 8, ready=True, labels=h200, taints=({**TEAM, "effect": "NoExecute"},)),
        Node("other", 8, 8, ready=True, labels={"gpu": "a100"}),
        Node("cpu", 0, 0, ready=True, labels=h200),
        Node("broken", 8, 8, ready=False, labels=h200),
        Node("cordoned", 8, 8, ready=True, unschedulable=True, labels=h200),
    ]
    wants = {"node_selector": h200, "tolerations": ["team=vision:NoSchedule"]}
    assert nodes_for(nodes, a_plan(tmp_path, kubernetes=wants)) == ["good", "team", "preferred"]
    assert nodes_for(nodes, a_plan(tmp_path, gpus="none")) == ["preferred", "other", "cpu"]


@pytest.mark.parametrize("api", VERSIONS)
def test_a_pod_asks_for_next_to_nothing_and_would_be_taken(tmp_path: Path, api: str) -> None:
    plan = a_plan(tmp_path, kubernetes={"image_pull_secrets": ["ghcr"], "service_account": "trainer"})
    first, second = pull_pods(plan, ["a", "b"], 60.0)
    assert violations(first, api) == []
    assert first["metadata"]["name"] != second["metadata"]["name"]
    [container] = first["spec"]["containers"]
    assert container["image"] == plan.image and "nvidia.com/gpu" not in str(container["resources"])
    assert "seatrial.run" not in first["metadata"]["labels"], "no run is to be judged by it"
    assert first["spec"]["imagePullSecrets"] == [{"name": "ghcr"}]


def _pod(plan: ClusterPlan, number: int, **state: Any) -> dict[str, Any]:
    name = f"{plan.name}-pull-{number}"
    meta = {"name": name, "uid": name, "creationTimestamp": "2026-11-22T10:00:00Z", "labels": {}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "pull", "image": plan.image, "state": state}]}
    return {"metadata": meta, "spec": {"containers": [{"name": "pull", "image": plan.image}]}, "status": status}


def _prepull(
    folder: Path, plan: ClusterPlan, pods: list[dict[str, Any]], *, wait_s: float = 60.0
) -> tuple[list[str], list[str], EngineError | None]:
    answers = {"/version": version(33), f"POST {PODS}": {}, f"GET {PODS}": {"items": pods}}
    said: list[str] = []
    with cluster_api(folder, answers) as (cluster, asked):
        try:
            prepull(cluster, plan, [f"n{number}" for number in range(len(pods))], said.append, wait_s)
        except EngineError as error:
            return said, asked, error
    return said, asked, None


def test_pods_go_when_every_node_has_the_image(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    pods = [
        _pod(plan, 0, terminated={"exitCode": 0}),
        _pod(plan, 1, terminated={"exitCode": 128, "reason": "StartError"}),
        _pod(plan, 2, waiting={"reason": "CreateContainerError", "message": "no such file"}),
    ]
    said, asked, error = _prepull(tmp_path, plan, pods)
    assert error is None and [line.partition(" (")[0] for line in said] == [f"n{n} has the image" for n in range(3)]
    assert [line for line in asked if line.startswith("DELETE")] == [
        f"DELETE {PODS}/{plan.name}-pull-{n}" for n in range(3)
    ]


def test_an_image_that_cannot_be_pulled_is_explained_and_the_pods_go(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    unauthorized = f'failed to pull and unpack image "{plan.image}": unauthorized: authentication required'
    pods = [
        _pod(plan, 0, terminated={"exitCode": 0}),
        _pod(plan, 1, waiting={"reason": "ErrImagePull", "message": unauthorized}),
    ]
    said, asked, error = _prepull(tmp_path, plan, pods)
    assert error is not None and f"{plan.image} is not on n1: 1 of 2 nodes have it" in error.message
    assert "docker-registry" in (error.run or "") and any(line.startswith("n1: Node") for line in said)
    assert sum(line.startswith("DELETE") for line in asked) == 2


def test_a_pull_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepulling, "POLL_S", 0.01)
    plan = a_plan(tmp_path)
    slow = _pod(plan, 0, waiting={"reason": "ContainerCreating"})
    _, asked, error = _prepull(tmp_path, plan, [slow], wait_s=0.3)
    assert error is not None and error.cause == "the pull has not ended in time" and "--wait" in (error.run or "")
    assert asked[-1] == f"DELETE {PODS}/{plan.name}-pull-0"


def test_pods_that_may_not_be_created_leave_none_behind(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    answers = {"/version": version(33), f"POST {PODS}": FORBIDDEN}
    with cluster_api(tmp_path, answers) as (cluster, asked), pytest.raises(EngineError, match="403"):
        prepull(cluster, plan, ["n0", "n1"], print, 5.0)
    assert not any(line.startswith("DELETE") for line in asked)


def test_the_verb_shows_what_it_would_do(tmp_path: Path) -> None:
    resources = {"nvidia.com/gpu": "8"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    nodes = {"items": [{"metadata": {"name": "gpu-1"}, "status": status}, {"metadata": {"name": "cpu-1"}}]}
    project = tmp_path / "project"
    project.mkdir()
    (project / "seatrial.toml").write_text('[kubernetes]\nimage_pull_secrets = ["ghcr"]\n')
    places = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    with cluster_api(tmp_path, {"/version": version(33), "/api/v1/nodes": nodes}) as (_, asked):
        argv = [sys.executable, "-m", "seatrial", "k8s", "prepull", "ghcr.io/me/train:1", "--dry-run"]
        done = subprocess.run(argv, cwd=project, env={**os.environ, **places}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ghcr.io/me/train:1 would be pulled onto gpu-1" in done.stderr
    assert "name: ghcr" in done.stdout and LABEL in done.stdout and "cpu-1" not in done.stdout
    assert not any(line.startswith("POST /api/v1/namespaces") for line in asked)
