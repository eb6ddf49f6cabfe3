"""What `k8s cleanup` takes: objects as Kubernetes 1.33 and the operators have them."""

from __future__ import annotations

import calendar
import time
from typing import Any

import pytest

from seatrial.backends.kubernetes.cleanup import reasons

NOW = float(calendar.timegm((2026, 11, 22, 12, 0, 0, 0, 0, 0)))


def an_object(run: str = "r1", age_s: float = 3600.0, **keys: Any) -> dict[str, Any]:
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - age_s))
    labels = {"app.kubernetes.io/managed-by": "seatrial", **({"seatrial.run": run} if run else {})}
    return {"metadata": {"name": "seatrial-x", "uid": "u", "creationTimestamp": made, "labels": labels}, **keys}


def condition(type: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": type, "status": status, "reason": reason, "message": message}


def a_pod(phase: str) -> dict[str, Any]:
    return an_object(status={"phase": phase})


PARTS = {"ConfigMap": [an_object()], "Service": [an_object()]}

#: Status of unfinished workloads as the API server gave them.
LIVE: dict[str, tuple[str, dict[str, Any]]] = {
    "blocked by quota": ("Job", {"startTime": "2026-11-22T11:00:00Z", "active": 0, "ready": 0, "terminating": 0,
                                 "uncountedTerminatedPods": {}}),
    "in back-off": ("Job", {"startTime": "2026-11-22T11:00:00Z", "failed": 1, "ready": 0, "terminating": 0}),
    "suspended": ("Job", {"conditions": [condition("Suspended", reason="JobSuspended", message="Job suspended")]}),
    "nobody has looked": ("Job", {}),
    "about to fail": ("Job", {"conditions": [condition("FailureTarget", reason="PodFailurePolicy")], "terminating": 1}),
    "success is near": ("Job", {"conditions": [condition("SuccessCriteriaMet", reason="CompletionsReached")]}),
    "once suspended": ("PyTorchJob", {"conditions": [condition("Created"), condition("Suspended", "False")]}),
    "restarting": ("PyTorchJob", {"conditions": [condition("Created"), condition("Restarting")]}),
    "no longer failed": ("Job", {"conditions": [condition("Failed", "False")]}),
    "held by its queue": ("TrainJob", {"conditions": [condition("Suspended", reason="Suspended")]}),
}  # fmt: skip


@pytest.mark.parametrize("why", LIVE)
@pytest.mark.parametrize("pods", [[], [a_pod("Failed")], [a_pod("Pending")]], ids=["no-pod", "failed", "pending"])
def test_what_has_not_ended_stays(why: str, pods: list[dict[str, Any]]) -> None:
    kind, status = LIVE[why]
    assert reasons({kind: [an_object(status=status)], **PARTS, "Pod": pods}, NOW) == {}


@pytest.mark.parametrize(
    ("kind", "status", "says"),
    [
        ("Job", {"conditions": [condition("SuccessCriteriaMet"), condition("Complete")]}, "Job says Complete"),
        ("Job", {"conditions": [condition("Failed", message="Job has reached its backoff limit")]}, "backoff"),
        ("PyTorchJob", {"conditions": [condition("Running", "False"), condition("Succeeded")]}, "says Succeeded"),
        ("TrainJob", {"conditions": [condition("Complete")]}, "TrainJob says Complete"),
    ],
)  # fmt: skip
def test_what_has_ended_goes_and_says_why(kind: str, status: dict[str, Any], says: str) -> None:
    why = reasons({kind: [an_object(status=status)], **PARTS, "Pod": [a_pod("Succeeded")]}, NOW)
    assert list(why) == ["r1"] and says in why["r1"]


def test_the_last_pods_of_a_job_that_succeeded_may_finish() -> None:
    done = an_object(status={"conditions": [condition("Succeeded")]})
    assert reasons({"PyTorchJob": [done], "Pod": [a_pod("Succeeded"), a_pod("Running")]}, NOW) == {}
    failed = an_object(status={"conditions": [condition("Failed")]})
    assert reasons({"PyTorchJob": [failed], "Pod": [a_pod("Failed"), a_pod("Running")]}, NOW)


def test_one_job_a_node_has_ended_when_all_have() -> None:
    done, going = an_object(status={"conditions": [condition("Complete")]}), an_object(status={"active": 1})
    assert reasons({"Job": [done, going]}, NOW) == {}
    assert reasons({"Job": [done, done]}, NOW)


def test_parts_without_a_workload() -> None:
    assert reasons({"ConfigMap": [an_object(age_s=30)]}, NOW) == {}  # it is being submitted
    assert reasons({"ConfigMap": [an_object()]}, NOW) == {"r1": "its run has no workload any more"}
    assert reasons({"ConfigMap": [an_object()], "Pod": [a_pod("Running")]}, NOW) == {}
    assert reasons({"ConfigMap": [an_object("", age_s=1)]}, NOW) == {"": "it belongs to no run"}


def test_all_takes_all_and_one_run_decides_for_no_other() -> None:
    live, done = an_object(status={"active": 1}), an_object("r2", status={"conditions": [condition("Complete")]})
    assert list(reasons({"Job": [live, done]}, NOW)) == ["r2"]
    assert set(reasons({"Job": [live, done]}, NOW, everything=True)) == {"r1", "r2"}


@pytest.mark.parametrize("status", [{"conditions": None}, {"conditions": [{}]}, {"conditions": [{"type": "Failed"}]}])
def test_odd_conditions_end_nothing(status: dict[str, Any]) -> None:
    assert reasons({"Job": [an_object(status=status)]}, NOW) == {}
