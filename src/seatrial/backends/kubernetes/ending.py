"""Stopping a run for good: its workload goes first, so that no controller makes pods again, then its pods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seatrial.backends.kubernetes.devices import GROUP
from seatrial.backends.kubernetes.manifests.names import RUN_LABEL, selector
from seatrial.backends.kubernetes.manifests.render import RESOURCES
from seatrial.backends.kubernetes.pods import Pod, read_pod
from seatrial.job.cluster import ClusterPlan

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

#: For pods to end after a deletion, on top of their own grace.
END_TIMEOUT_S = 30.0
POLL_S = 0.2

#: In which the cluster passes the deletion of a workload on to its pods, through the Jobs of a JobSet, too.
PASSED_ON_S = 10.0

#: On Services that the training operator makes: the name of their PyTorchJob. Our own label is not on them.
#: Source: kubeflow/training-operator pkg/apis/kubeflow.org/v1/common_types.go.
_JOB_NAME = "training.kubeflow.org/job-name"


def end(cluster: Cluster, plan: ClusterPlan, workloads: Sequence[str], grace_s: int) -> None:
    """Delete the run's workloads and wait until its pods have ended.

    The deletion is one in the foreground: a controller makes nothing for a workload that is being deleted, and what it
    made (pods, Services, the Jobs of a JobSet) goes with it. An orphaning one would leave the operator's Services, and
    a JobSet that starts its pods again.

    Args:
        workloads: their API paths.
        grace_s: for the pods from now on; 0 kills.
    """
    for path in workloads:
        cluster.delete(path, propagation="Foreground")
    begin_s = time.monotonic()
    told: set[str] = set()
    while True:
        pods, waited_s = pods_of(cluster, plan), time.monotonic() - begin_s
        if all(pod.ended for pod in pods) or waited_s > grace_s + END_TIMEOUT_S:
            break
        for pod in pods:
            # Deleted by us before its owner is, a pod would be made again.
            if pod.uid not in told and (pod.deleted or not workloads or waited_s > PASSED_ON_S):
                told.add(pod.uid)
                cluster.delete(_path(plan, pod), grace_s=grace_s if pod.started else 0)  # nothing to save before it ran
        time.sleep(POLL_S)
    # Ended pods may stay for a minute, until the kubelet has tidied up; nobody needs to wait for that.
    for pod in pods_of(cluster, plan):
        cluster.delete(_path(plan, pod), grace_s=0)
    _remove_rest(cluster, plan)


def pods_of(cluster: Cluster, plan: ClusterPlan) -> list[Pod]:
    """All pods with the run's label, also those that are ending."""
    found = cluster.get(f"/api/v1/namespaces/{plan.namespace}/pods", labelSelector=selector(plan.labels[RUN_LABEL]))
    return [read_pod(item) for item in found["items"]]


def _path(plan: ClusterPlan, pod: Pod) -> str:
    return f"/api/v1/namespaces/{plan.namespace}/pods/{pod.name}"


def _remove_rest(cluster: Cluster, plan: ClusterPlan) -> None:
    """What the workload owned and the cluster has not collected yet, or what a workload that is gone left behind."""
    ours = selector(plan.labels[RUN_LABEL])
    wanted = [(kind, ours) for kind in ("ConfigMap", "Secret", "Service")]
    if plan.claim is not None:
        wanted.append(("ResourceClaimTemplate", ours))
    if plan.kind == "pytorchjob":
        wanted.append(("Service", f"{_JOB_NAME}={plan.name}"))
    for kind, labels in wanted:
        base, plural = RESOURCES[kind]
        if kind == "ResourceClaimTemplate" and plan.claim is not None:
            base = f"{GROUP}/{plan.claim.api}"
        path = f"{base}/namespaces/{plan.namespace}/{plural}"
        for item in cluster.get(path, labelSelector=labels)["items"]:
            cluster.delete(f"{path}/{item['metadata']['name']}")
