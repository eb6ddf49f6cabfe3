"""Why pods do not run: recorded words of the scheduler and the kubelet, and the facts around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.backends.kubernetes.pending import Surroundings, explain
from seatrial.backends.kubernetes.pods import Pod, newest, read_pod, state_of, workload_state
from seatrial.backends.kubernetes.survey import Node, read_node
from seatrial.job.in_container import EXIT_POD_STOPPED
from tables import cases

POD = Pod("run-0", "uid", 0, "Pending", "2026-11-21T00:00:00Z")
IMAGE = "ghcr.io/me/x:1"
ITEM = {
    "spec": {
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H300"},
        "containers": [{"image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "4"}}}],
    }
}
NODES = (Node("a", 8, 7, ready=True, labels={"nvidia.com/gpu.product": "NVIDIA-H200"}), Node("b", 2, 2, ready=True))
AROUND = Surroundings(ITEM, NODES, (("team/other", 6), ("team/third", 2)))


@cases("reason", "message", "id", "prints")
def test_what_the_cluster_reports(reason: str, message: str, id: str, prints: str) -> None:
    finding = explain(POD, reason, message, AROUND)
    assert finding is not None and finding.id == id and prints in finding.message
    assert finding.fix and finding.cause and finding.evidence


def test_a_lost_node_is_reported_with_what_gives_it_up() -> None:
    finding = explain(replace(POD, host="gpu-7"), "NodeNotReady", "Node is not ready", AROUND)
    assert finding is not None and (finding.id, finding.severity) == ("k8s-node-lost", "warning")
    assert finding.message == "Node 0: the machine gpu-7 does not answer"
    assert finding.fix is not None and "kubectl delete node gpu-7" in finding.fix


@cases("gpus", "pods", "allocatable", "cause", "fix")
def test_more_gpus_than_any_node_has(gpus: int, pods: int, allocatable: tuple[int, ...], cause: str, fix: str) -> None:
    wide = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}}
    nodes = tuple(Node(name, count, count, ready=True) for name, count in zip("abc", allocatable, strict=False))
    around = Surroundings(wide, nodes, (), pods)
    finding = explain(POD, "FailedScheduling", "Insufficient nvidia.com/gpu", around)
    assert finding is not None and cause in str(finding.cause) and str(finding.fix) == f"seatrial run … {fix}"


@cases("message", "taints", "tolerations", "id", "detail", "fix")
def test_taints_are_read_from_the_nodes(
    message: str, taints: list[dict[str, str]] | None, tolerations: list[Any], id: str, detail: str, fix: str
) -> None:
    """Since 1.34 the scheduler names none; before, it leaves the effect out."""
    pod = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}], "tolerations": tolerations}}
    raw = {"metadata": {"name": "g"}, "spec": {"taints": taints}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    nodes = None if taints is None else (read_node(raw, "nvidia.com/gpu"), Node("cpu", 0, 0, ready=True))
    finding = explain(POD, "FailedScheduling", message, Surroundings(pod, nodes))
    assert finding is not None and finding.id == id and finding.message.endswith(detail)
    assert fix in str(finding.fix) and "<" not in str(finding.fix)


@cases("resources", "message", "id", "fix")
def test_whose_request_it_is(resources: dict[str, dict[str, str]], message: str, id: str, fix: str) -> None:
    around = Surroundings({"spec": {"containers": [{"resources": resources}]}}, NODES)
    finding = explain(POD, "FailedScheduling", f"0/2 nodes are available: {message}", around)
    assert finding is not None and finding.id == id and fix in str(finding.fix)


def _pod(name: str, phase: str, created: str, code: int | None = None, **labels: str) -> Pod:
    ended = {"terminated": {"exitCode": code}} if code is not None else {"running": {}}
    meta = {"name": name, "uid": name, "creationTimestamp": created, "labels": labels}
    return read_pod({"metadata": meta, "status": {"phase": phase, "containerStatuses": [{"state": ended}]}})


def test_a_pod_that_came_back_counts_and_the_lost_one_does_not() -> None:
    second = {"batch.kubernetes.io/job-completion-index": "1"}
    lost = _pod("r-1-aaaaa", "Failed", "2026-11-21T00:00:00Z", 137, **second)
    back = _pod("r-1-bbbbb", "Running", "2026-11-21T00:01:00Z", **second)
    first = _pod("r-0-ccccc", "Running", "2026-11-21T00:00:00Z")
    assert (lost.node, back.node, first.node) == (1, 1, 0)
    assert state_of([lost, back, first], 2, "active").status == "running"
    done = [
        _pod("r-1-bbbbb", "Succeeded", "2026-11-21T00:01:00Z", 0, **second),
        _pod("r-0-c", "Succeeded", "2026", 0),
        lost,
    ]
    assert state_of(done, 2, "done").exit_code == 0


def test_operators_number_their_pods() -> None:
    replica = {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "1"}
    assert _pod("x-worker-1", "Running", "2026", **replica).node == 2
    assert _pod("x-3-abcde", "Running", "2026", **{"batch.kubernetes.io/job-completion-index": "3"}).node == 3
    assert _pod("x-12345", "Running", "2026").node == 0, "the name is not an index"


@cases("workloads", "verdict")
def test_end_of_a_workload_is_read_from_its_conditions(workloads: list[dict[str, Any]], verdict: str) -> None:
    assert workload_state(workloads) == verdict


# --------------------------------------------------------- which pod counts


FINISHED = Pod("run-0-aaaaa", "1", 0, "Succeeded", "2026-11-21T00:00:00Z", started=True, exit_code=0, deleted=True)
AFTER_IT = Pod("run-0-bbbbb", "2", 0, "Failed", "2026-11-21T00:00:02Z", started=True, exit_code=EXIT_POD_STOPPED)


def test_a_pod_that_was_deleted_and_finished_counts_and_not_the_one_made_in_its_place() -> None:
    state = state_of([AFTER_IT, FINISHED], 1, "done")
    assert (state.status, state.exit_code) == ("exited", 0)


def test_a_pod_that_comes_again_replaces_one_that_failed() -> None:
    again = Pod("run-0-ccccc", "3", 0, "Running", "2026-11-21T00:00:04Z", started=True)
    assert newest([again, AFTER_IT], 1) == {0: again}
