"""What stands between a workload and its pods: quota, limits, Pod Security, a queue. Pure.

Pods that may not be created have no events. Their Job, PyTorchJob or TrainJob has, and so has the Workload that Kueue
makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.backends.kubernetes.containers import OURS
from seatrial.backends.kubernetes.pods import Pod, newest
from seatrial.findings.finding import Finding
from seatrial.findings.match import Match, first_in

#: Kinds that make pods, or hold them back. Source: batch/v1, kubeflow.org, jobset.x-k8s.io, kueue.x-k8s.io.
KINDS = ("Job", "PyTorchJob", "TrainJob", "JobSet", "Workload")

#: Normal events that say that no pod is made for now; any other that matters is a warning. Sources: kubernetes
#: pkg/controller/job; kubeflow/training-operator pkg/util/status.go; kubernetes-sigs/kueue pkg/scheduler;
#: kubernetes-sigs/jobset pkg/constants.
_HELD = (
    "Suspended",
    "JobSuspended",
    "PyTorchJobSuspended",
    "TrainJobSuspended",
    "SuspendedJobs",
    "Pending",
    "Inadmissible",
)

#: Entry of the catalogue → what `runs ls` calls it.
_WAITS_FOR = {
    "k8s-quota": "quota",
    "k8s-limits-required": "limits",
    "k8s-limit-range": "limit range",
    "k8s-pod-security": "Pod Security",
    "k8s-service-account": "service account",
    "k8s-queue": "queue",
    "k8s-suspended": "suspended",
    "k8s-admission": "admission",
    "k8s-pods-refused": "pods are refused",
    "k8s-insufficient-gpus": "GPUs",
    "k8s-insufficient-resources": "capacity",
    "k8s-claims": "GPUs",
    "k8s-device-class": "device class",
    "k8s-gpu-taint": "untainted node",
    "k8s-taint": "untainted node",
    "k8s-node-selector": "node selector",
    "k8s-claim-missing": "volume",
    "k8s-volume": "volume",
    "k8s-runtime-class": "RuntimeClass",
}
_LONGEST = 300
_EXITED = re.compile(r"exited with code (\d{1,3})$")


def is_of_run(involved: Mapping[str, Any], name: str) -> bool:
    """Whether an event is about what a run has on the cluster, besides its pods.

    Args:
        involved: the event's involvedObject. name: of the run's workload.
    """
    told = str(involved.get("name", ""))
    return involved.get("kind") in KINDS and (told == name or f"-{told}-".find(f"-{name}-") >= 0)


def explain_workload(event: Mapping[str, Any]) -> Finding | None:
    """The finding of an event of a workload, or None for one that holds nothing up."""
    match = _match(event)
    if match is None:
        return None
    said = _said(event)
    detail = said.rpartition(" is forbidden: ")[2] if " is forbidden: " in said else event.get("message") or ""
    foreign = [name for name in re.findall(r'containers? "([^"]+)"', said) if name not in OURS]
    cause = fix = None
    if match.known.id == "k8s-pod-security" and foreign:
        cause = f"An operator or webhook adds the container {foreign[0]}, which lacks what the namespace requires"
        fix = "seatrial run … --kind job   # or ask for a namespace that admits the operator's pods"
    finding = match.known.finding([said[:_LONGEST]], values=match.values, cause=cause, fix=fix)
    if detail and match.known.id != "k8s-suspended":
        finding.message += f": {detail[:_LONGEST]}"
    return finding


def waiting_for(
    pods: Sequence[Pod], nodes: int, workloads: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> str | None:
    """What a run waits for, in a word or two; None where it waits for nothing that is known.

    Args:
        events: of its workloads, the oldest first.
    """
    latest = newest(pods, nodes)
    if any(pod.unreachable and not pod.ended for pod in latest.values()):
        return "a lost node"
    if any(pod.started and not pod.ended for pod in latest.values()):
        return None
    for pod in latest.values():
        if pod.unschedulable and (match := first_in(f"FailedScheduling: {pod.unschedulable}", ("kubernetes",))):
            return _word(match)
    if len(latest) == nodes and not all(pod.ended for pod in latest.values()):
        return None
    matches = [match for match in map(_match, events) if match is not None]
    held = any(_is_suspended(workload) for workload in workloads)
    told = [match for match in matches if (match.known.id in ("k8s-suspended", "k8s-queue")) == held]
    return _word(told[-1]) if told else "suspended" if held else None


def told_exit_code(events: Sequence[Mapping[str, Any]]) -> int | None:
    """What an operator said of pods that are gone: the last exit code that is not 0, else 0; None where it said none.

    Source: kubeflow/training-operator v1.9.0 pkg/controller.v1/common/pod.go, ExitedWithCode.
    """
    said = [_EXITED.search(event.get("message") or "") for event in events if event.get("reason") == "ExitedWithCode"]
    codes = [int(match[1]) for match in said if match is not None]
    return next((code for code in reversed(codes) if code), 0 if codes else None)


def _match(event: Mapping[str, Any]) -> Match | None:
    if event.get("type") != "Warning" and event.get("reason") not in _HELD:
        return None
    return first_in(_said(event), ("kubernetes",))


def _said(event: Mapping[str, Any]) -> str:
    return " ".join(f"{event.get('reason') or ''}: {event.get('message') or ''}".split())


def _is_suspended(workload: Mapping[str, Any]) -> bool:
    spec = workload.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _word(match: Match) -> str:
    return _WAITS_FOR.get(match.known.id, match.known.id.replace("k8s-", "").replace("-", " "))
