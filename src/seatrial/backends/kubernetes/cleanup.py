"""Removing what seatrial made on a cluster, and only that: every object of ours carries a label, volumes never do."""

from __future__ import annotations

from typing import Any

from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.manifests.names import MANAGED_BY, RUN_LABEL
from seatrial.backends.kubernetes.manifests.render import RESOURCES
from seatrial.backends.kubernetes.pods import read_pod
from seatrial.backends.kubernetes.problems import ApiError

#: Workloads first: what they own goes with them. Pods last: those of an orphaning deletion have no owner any more.
_KINDS = ("TrainJob", "PyTorchJob", "Job", "Service", "ConfigMap", "Secret")


def clean_up(cluster: Cluster, *, everything: bool = False, dry_run: bool = False) -> list[str]:
    """Delete the objects of ended runs (with ``everything``, of all); ``kind/name`` of each.

    Raises SeatrialError naming the missing permission.
    """
    namespace = cluster.namespace
    pods = _ours(cluster, f"/api/v1/namespaces/{namespace}/pods")
    live = {_run(item) for item in pods if not read_pod(item).ended}
    removed = []
    for kind in _KINDS:
        base, plural = RESOURCES[kind]
        removed += _remove(
            cluster, kind, f"{base}/namespaces/{namespace}/{plural}", set() if everything else live, dry_run
        )
    removed += _remove(cluster, "Pod", f"/api/v1/namespaces/{namespace}/pods", set() if everything else live, dry_run)
    return removed


def _remove(cluster: Cluster, kind: str, path: str, live: set[str], dry_run: bool) -> list[str]:
    doomed = [item for item in _ours(cluster, path) if _run(item) not in live]
    for item in doomed:
        if not dry_run:
            cluster.delete(f"{path}/{item['metadata']['name']}")
    return [f"{kind.lower()}/{item['metadata']['name']}" for item in doomed]


def _ours(cluster: Cluster, path: str) -> list[dict[str, Any]]:
    """Objects with our label; none where the cluster has no such kind."""
    try:
        items: list[dict[str, Any]] = cluster.get(path, labelSelector=f"{MANAGED_BY}=seatrial")["items"]
    except ApiError as error:
        if error.status == 404:  # no such CRD
            return []
        raise
    return items


def _run(item: dict[str, Any]) -> str:
    return str(item["metadata"].get("labels", {}).get(RUN_LABEL, ""))
