"""Pulling an image onto nodes before a run needs it: one small pod on each node, removed when the image is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.explain import Surroundings, explain
from seatrial.backends.kubernetes.manifests.names import MANAGED_BY, RUN_LABEL, Manifest
from seatrial.backends.kubernetes.manifests.pod import container_security, pod_security, tolerations
from seatrial.backends.kubernetes.pods import HOPELESS, Pod, read_pod
from seatrial.backends.kubernetes.survey import Node
from seatrial.errors import EngineError
from seatrial.findings.finding import Finding
from seatrial.job.cluster import ClusterPlan, Toleration

#: On our pods alone: the ID of this pull. They belong to no run, so ``k8s cleanup`` takes what is left of them.
LABEL = "seatrial.prepull"
CONTAINER = "pull"
POLL_S = 1.0

#: What no patience mends, among the catalogue's entries about images.
_FINAL = ("k8s-image-denied", "k8s-image-unknown", "k8s-image-not-there")

#: Waiting reasons of a container whose image is there. Source: kubernetes pkg/kubelet/kuberuntime.
_PULLED = ("CreateContainerError", "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff")


@dataclass
class Pulls:
    """How far it is: names of nodes. ``failed``: node → why, as far as that was told."""

    waiting: list[str]
    there: list[str] = field(default_factory=list)
    failed: dict[str, Finding | None] = field(default_factory=dict)


def nodes_for(nodes: Sequence[Node], plan: ClusterPlan) -> list[str]:
    """Nodes on which a pod of this plan may land: ready, with its labels, its GPUs, and taints that it tolerates."""
    tolerated = [*plan.tolerations, *([Toleration(key="nvidia.com/gpu")] if plan.gpus else [])]
    return [
        node.name
        for node in nodes
        if node.ready
        and not node.unschedulable
        and plan.node_selector.items() <= node.labels.items()
        and node.capacity >= plan.gpus
        and all(_is_tolerated(taint, tolerated) for taint in node.taints)
    ]


def _is_tolerated(taint: dict[str, str], tolerated: Sequence[Toleration]) -> bool:
    return taint.get("effect") == "PreferNoSchedule" or any(
        one.key == taint.get("key")
        and one.value in (None, taint.get("value", ""))
        and one.effect in (None, taint.get("effect"))
        for one in tolerated
    )


def pull_pods(plan: ClusterPlan, nodes: Sequence[str], timeout_s: float) -> list[Manifest]:
    """A pod for each node, which does nothing. It asks for no GPU, and for next to no CPU and memory."""
    return [_pod(plan, node, f"{plan.name}-pull-{number}", timeout_s) for number, node in enumerate(nodes)]


def _pod(plan: ClusterPlan, node: str, name: str, timeout_s: float) -> Manifest:
    here = {"key": "metadata.name", "operator": "In", "values": [node]}  # as a DaemonSet's pods are bound
    required = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    little = {"cpu": "50m", "memory": "64Mi"}
    spec: Manifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "activeDeadlineSeconds": round(timeout_s),
        "terminationGracePeriodSeconds": 0,
        "securityContext": pod_security(plan),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "containers": [
            {
                "name": CONTAINER,
                "image": plan.image,
                "imagePullPolicy": "IfNotPresent",
                "command": [plan.command[0], "-c", ""],  # of an image without it the end is told, and it is there
                "resources": {"requests": little, "limits": little},
                "securityContext": container_security(plan),
            }
        ],
        "imagePullSecrets": [{"name": secret} for secret in plan.image_pull_secrets],
        "tolerations": tolerations(plan),
    }
    if plan.service_account:
        spec["serviceAccountName"] = plan.service_account
    labels = {MANAGED_BY: "seatrial", LABEL: plan.labels[RUN_LABEL]}
    metadata = {"name": name, "namespace": plan.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def prepull(
    cluster: Cluster, plan: ClusterPlan, nodes: Sequence[str], say: Callable[[str], None], timeout_s: float
) -> None:
    """Pull the plan's image onto these nodes, all at once.

    Raises EngineError naming the nodes that do not have it in the end, and why the first does not.
    """
    path = f"/api/v1/namespaces/{plan.namespace}/pods"
    made: dict[str, str] = {}
    began_s = time.monotonic()
    pulls = Pulls(list(nodes))
    try:
        for node, manifest in zip(nodes, pull_pods(plan, nodes, timeout_s), strict=True):
            cluster.create(path, manifest)
            made[manifest["metadata"]["name"]] = node
        while pulls.waiting and time.monotonic() - began_s < timeout_s:
            found = cluster.get(path, labelSelector=f"{LABEL}={plan.labels[RUN_LABEL]}")["items"]
            for item in found:
                if (node := made.get(item["metadata"]["name"], "")) in pulls.waiting:
                    _look(item, node, pulls, lambda told: say(f"{told} ({time.monotonic() - began_s:.0f} s)"))
            if pulls.waiting:
                time.sleep(POLL_S)
    finally:
        for name in made:
            cluster.delete(f"{path}/{name}", grace_s=0)
    _refuse_missing(pulls, plan.image)


def _look(item: dict[str, Any], node: str, pulls: Pulls, say: Callable[[str], None]) -> None:
    pod = read_pod(item)
    reason, message = pod.waiting or ("", "")
    if pod.started or reason in _PULLED:
        pulls.waiting.remove(node)
        pulls.failed.pop(node, None)
        pulls.there.append(node)
        say(f"{node} has the image")
        return
    finding = _trouble(pod, reason, message, item)
    if finding is not None and node not in pulls.failed:
        say(f"{node}: {finding.message}")
    if finding is not None:
        pulls.failed[node] = finding
    if pod.ended or reason in HOPELESS or (finding is not None and finding.id in _FINAL):
        pulls.failed.setdefault(node, None)
        pulls.waiting.remove(node)


def _trouble(pod: Pod, reason: str, message: str, item: dict[str, Any]) -> Finding | None:
    if pod.unschedulable:
        reason, message = "FailedScheduling", pod.unschedulable
    return explain(pod, reason, message, Surroundings(item, "nvidia.com/gpu")) if reason else None


def _refuse_missing(pulls: Pulls, image: str) -> None:
    missing = [*pulls.failed, *(node for node in pulls.waiting if node not in pulls.failed)]
    if not missing:
        return
    first = pulls.failed.get(missing[0])
    have = f"{len(pulls.there)} of {len(missing) + len(pulls.there)} nodes have it"
    raise EngineError(
        f"{image} is not on {', '.join(missing)}: {have}",
        cause=first.cause if first else "the pull has not ended in time",
        run=first.fix if first else "seatrial k8s prepull … --wait 2h",
    )
