"""Pods that do not run, and ends of pods: recorded messages of schedulers, kubelets and operators, with their facts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from seatrial.backends.kubernetes.collect import PodProgress
from seatrial.backends.kubernetes.pending import (
    Surroundings,
    explain,
    explain_workload,
    reported_exit_code,
    waiting_for,
)
from seatrial.backends.kubernetes.survey import Node, Pod, newest, read_node, read_pod, state_of, workload_state
from seatrial.job.in_container import EXIT_POD_STOPPED
from tables import cases, constant

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
    finding = explain(POD._replace(host="gpu-7"), "NodeNotReady", "Node is not ready", AROUND)
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
    assert workload_state(workloads)[0] == verdict


# --------------------------------------------------------- which pod counts


FINISHED = Pod("run-0-aaaaa", "1", 0, "Succeeded", "2026-11-21T00:00:00Z", started=True, exit_code=0, deleted=True)
AFTER_IT = Pod("run-0-bbbbb", "2", 0, "Failed", "2026-11-21T00:00:02Z", started=True, exit_code=EXIT_POD_STOPPED)


def test_a_pod_that_was_deleted_and_finished_counts_and_not_the_one_made_in_its_place() -> None:
    state = state_of([AFTER_IT, FINISHED], 1, "done")
    assert (state.status, state.exit_code) == ("exited", 0)


def test_a_pod_that_comes_again_replaces_one_that_failed() -> None:
    again = Pod("run-0-ccccc", "3", 0, "Running", "2026-11-21T00:00:04Z", started=True)
    assert newest([again, AFTER_IT], 1) == {0: again}


RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-11-21T00:00:05Z"}}
INITIALIZING: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
TRAIN, PROXY, INIT = "ghcr.io/me/train:1", "docker.io/istio/proxyv2:1.27.1", "alpine:3.10"


def _ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}


def _status(name: str, image: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "imageID": f"{image}@sha256:{name}", "state": state, **more}


def _item(
    phase: str, containers: list[dict[str, Any]], inits: tuple[dict[str, Any], ...] = (), policy: str = "Never"
) -> dict[str, Any]:
    """Sort statuses by name as a kubelet of 1.33 does, so that a sidecar may come first."""
    spec = {
        "restartPolicy": policy,
        "nodeName": "gpu-1",
        "containers": [
            {"name": "istio-proxy", "image": PROXY, "resources": {"limits": {"cpu": "2"}}},
            {"name": "train", "image": TRAIN, "resources": {"limits": {"nvidia.com/gpu": "4"}}},
        ],
    }
    meta = {"name": "run-0-abcde", "uid": "u", "creationTimestamp": "2026-11-21T00:00:00Z", "labels": {}}
    status = {"phase": phase, "containerStatuses": containers, "initContainerStatuses": list(inits)}
    return {"metadata": meta, "spec": spec, "status": status}


def _both(proxy: dict[str, Any], train: dict[str, Any]) -> list[dict[str, Any]]:
    return [_status("istio-proxy", PROXY, proxy, restartCount=3), _status("train", TRAIN, train, restartCount=0)]


@pytest.mark.parametrize("code", [0, 7])
def test_a_sidecar_that_never_ends_does_not_hold_up_the_end(code: int) -> None:
    pod = read_pod(_item("Running", _both(RUNNING, _ended(code))))
    assert pod.ended and pod.outlived_by == ("istio-proxy",) and pod.exit_code == code
    state = state_of([pod], 1, "active")
    assert (state.status, state.exit_code) == ("exited", code)


def test_a_container_that_is_started_again_in_place_has_not_ended() -> None:
    """restartPolicy OnFailure, as a PyTorchJob has it."""
    assert not read_pod(_item("Running", _both(RUNNING, _ended(1)), policy="OnFailure")).ended
    assert read_pod(_item("Running", _both(RUNNING, _ended(0)), policy="OnFailure")).ended


@cases("reason", "message", "image")
def test_the_image_that_cannot_be_pulled_is_named(reason: str, message: str, image: str) -> None:
    waiting = {"waiting": {"reason": reason, "message": message}}
    item = _item("Pending", _both(INITIALIZING, INITIALIZING), (_status("init-pytorch", INIT, waiting),))
    finding = explain(read_pod(item), reason, message, Surroundings(item))
    assert finding is not None and finding.message.endswith(image)


def test_a_native_sidecar_that_runs_is_no_trouble() -> None:
    """An init container with restartPolicy Always (1.29 and later) runs next to ours and ends after it."""
    native = (_status("istio-proxy", PROXY, RUNNING, started=True), _status("setup", INIT, _ended(0)))
    train = [_status("train", TRAIN, RUNNING)]
    pod = read_pod(_item("Running", train, native))
    assert pod.waiting is None and pod.started and not pod.ended
    pod = read_pod(_item("Running", [_status("train", TRAIN, _ended(0))], native))
    assert not pod.outlived_by, "the kubelet ends it; the pod's own phase gives the moment"


def test_an_init_container_that_keeps_failing_is_reported_and_ours_is_not() -> None:
    crashing = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}
    item = _item("Pending", _both(INITIALIZING, INITIALIZING), (_status("istio-init", INIT, crashing),), "OnFailure")
    pod, around = read_pod(item), Surroundings(item)
    assert pod.waiting is not None
    finding = explain(pod, *pod.waiting, around)
    assert finding is not None and finding.message.endswith("keeps failing: istio-init")
    assert finding.fix == "kubectl logs run-0-abcde -c istio-init"
    ours = read_pod(_item("Running", _both(RUNNING, crashing), policy="OnFailure"))
    assert ours.waiting is not None and explain(ours, *ours.waiting, around) is None


NAME = "seatrial-20261122-120000-train"


def event(message: str, reason: str = "FailedCreate", kind: str = "Job", **keys: Any) -> dict[str, Any]:
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "name": NAME},
        **keys,
    }


def forbidden(why: str, **keys: Any) -> dict[str, Any]:
    return event(f'Error creating: pods "{NAME}-0-7xk2p" is forbidden: {why}', **keys)


EVENTS = {
    name: event(**{**keys, "message": keys["message"].replace("NAME", NAME)})
    for name, keys in constant(__file__, "EVENTS").items()
}
QUOTA, LIMITS, OPERATOR, KUEUE, SUSPENDED = (
    EVENTS[name] for name in ("QUOTA", "LIMITS", "OPERATOR", "KUEUE", "SUSPENDED")
)
HELD = [{"spec": {"suspend": True}}]


@cases("name", "id", "prints", "run")
def test_what_keeps_pods_from_being_made(name: str, id: str, prints: str, run: str) -> None:
    finding = explain_workload(EVENTS[name])
    assert finding is not None and finding.id == id
    assert prints in finding.message and run in (finding.fix or "") and finding.cause
    assert "{" not in finding.message + finding.cause + (finding.fix or "")


def a_pod(phase: str = "Pending", message: str | None = None, **status: Any) -> Any:
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    meta = {"name": f"{NAME}-0", "uid": "u", "creationTimestamp": "2026-11-22T12:00:00Z"}
    return read_pod(
        {"metadata": meta, "status": {"phase": phase, "conditions": conditions if message else [], **status}}
    )


STARTED = {"containerStatuses": [{"state": {"running": {}}}]}


def conditions(**reported: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": status} for kind, status in reported.items()]


#: As a 1.20.2 cluster has it, 40 s after a node's kubelet was killed, and after the next five minutes.
LOST = {**STARTED, "conditions": conditions(Initialized="True", Ready="False", ContainersReady="True")}
GIVEN_UP = {**LOST, "reason": "NodeLost", "message": "Node b which was running pod a is unresponsive"}


@pytest.mark.parametrize(
    ("pods", "workloads", "events", "word"),
    [
        ([], [{}], [QUOTA], "quota"),
        ([], [{}], [LIMITS], "limits"),
        ([], [{}], [LIMITS, QUOTA], "quota"),
        ([], [{}], [OPERATOR], "Pod Security"),
        ([], HELD, [SUSPENDED, KUEUE], "queue"),
        ([], HELD, [SUSPENDED], "suspended"),
        ([], [{"spec": {"runPolicy": {"suspend": True}}}], [], "suspended"),
        ([], [{"spec": {"suspend": False}}], [SUSPENDED, KUEUE], None),  # it was let go on
        ([], [{}], [], None),
        ([a_pod("Failed")], [{}], [QUOTA], "quota"),  # the pod that would take its place
        ([a_pod()], [{}], [QUOTA], None),  # it was made since
        ([a_pod(message="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")], [{}], [], "GPUs"),
        ([a_pod("Running", **STARTED)], [{}], [QUOTA], None),
        ([a_pod("Running", **LOST)], [{}], [QUOTA], "a lost node"),
        ([a_pod("Running", **GIVEN_UP)], [{}], [], "a lost node"),
        (
            [a_pod("Running", **{**LOST, "conditions": conditions(Ready="False", ContainersReady="False")})],
            [{}],
            [],
            None,
        ),
        ([a_pod("Succeeded", **LOST)], [{}], [], None),
    ],
)
def test_what_a_run_waits_for(pods: Any, workloads: Any, events: Any, word: str | None) -> None:
    assert waiting_for(pods, 1, workloads, events) == word


def test_it_is_reported_once_however_often_the_controller_tries() -> None:
    printed: list[str] = []
    recorded: list[Any] = []
    progress = PodProgress(None, printed.append, recorded.append)  # type: ignore[arg-type]  # it calls no cluster
    for used in range(20):
        progress.workload_event(forbidden(f"exceeded quota: team, requested: cpu=4, used: cpu={used}", count=used))
    progress.workload_event(LIMITS)
    assert len(printed) == len(recorded) == 2
    assert "kubectl describe resourcequota" in printed[0]


def test_image_that_a_node_cannot_pull_is_one_trouble() -> None:
    printed: list[str] = []
    progress = PodProgress(None, printed.append, lambda event: None)  # type: ignore[arg-type]  # it calls no cluster

    async def report() -> None:
        await progress.pod(POD, ITEM)
        refused = f'Failed to pull image "{IMAGE}": dial tcp 10.0.0.1:443: connect: connection refused'
        for message in (refused, "Error: ErrImagePull", "Error: ImagePullBackOff"):
            await progress.event(POD, {"type": "Warning", "reason": "Failed", "message": message})
        other = 'Back-off pulling image "istio/proxy:1"'
        await progress.event(POD, {"type": "Warning", "reason": "BackOff", "message": other})

    asyncio.run(report())
    assert [line.partition(";")[0] for line in printed] == [
        f"Node 0: the node cannot reach the registry: {IMAGE}",
        "Node 0: the node cannot pull the image: istio/proxy:1",
    ]


def exited(code: object) -> dict[str, Any]:
    """Return the status in the training operator's form."""
    return event(f"Pod: team.{NAME}-master-0 exited with code {code}", reason="ExitedWithCode", type="Normal")


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([], None),
        ([QUOTA], None),
        ([exited(0)], 0),
        ([exited(143), exited(3)], 3),
        ([exited(7), exited(0)], 7),  # another node's
        ([exited(48879), exited("x"), exited(-1)], None),  # its number for a container that never ended
    ],
)
def test_the_exit_code_of_pods_that_are_gone(events: Any, code: int | None) -> None:
    assert reported_exit_code(events) == code


def test_what_a_container_left_as_its_message_is_not_believed() -> None:
    for reason, last_words in (("Error", None), ("StartError", "no such file"), ("ContainerCannotRun", "no such file")):
        ended = {"exitCode": 128, "reason": reason, "message": "no such file"}
        assert a_pod("Failed", containerStatuses=[{"state": {"terminated": ended}}]).last_words == last_words
