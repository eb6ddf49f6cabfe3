"""Pods that may not be created: events as Kubernetes 1.33, the training operator v1.9 and Kueue write them."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.backends.kubernetes.collect import PodProgress
from seatrial.backends.kubernetes.pending import explain_workload, reported_exit_code, waiting_for
from seatrial.backends.kubernetes.pods import read_pod
from tables import cases, constant

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


RUNNING = {"containerStatuses": [{"state": {"running": {}}}]}


def conditions(**reported: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": status} for kind, status in reported.items()]


#: As a 1.20.2 cluster has it, 40 s after a node's kubelet was killed, and after the next five minutes.
LOST = {**RUNNING, "conditions": conditions(Initialized="True", Ready="False", ContainersReady="True")}
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
        ([a_pod("Running", **RUNNING)], [{}], [QUOTA], None),
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
    progress = PodProgress(None, printed.append, recorded.append)  # type: ignore[arg-type]  # it asks the cluster nothing
    for used in range(20):
        progress.workload_event(forbidden(f"exceeded quota: team, requested: cpu=4, used: cpu={used}", count=used))
    progress.workload_event(LIMITS)
    assert len(printed) == len(recorded) == 2
    assert "kubectl describe resourcequota" in printed[0]


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
