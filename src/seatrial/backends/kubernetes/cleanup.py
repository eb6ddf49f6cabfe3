"""Removing what seatrial made on a cluster, and only that: every object of ours carries a label, volumes never do.

A run has ended when its workload says so. Pods say little: a Job that waits for quota, between two pods or for its
queue has none, and is alive.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.devices import GROUP, served_version
from seatrial.backends.kubernetes.manifests.names import MANAGED_BY, RUN_LABEL
from seatrial.backends.kubernetes.manifests.render import RESOURCES
from seatrial.backends.kubernetes.pods import end_of, read_pod
from seatrial.backends.kubernetes.problems import ApiError

#: Workloads first: what they own goes with them. Pods last: those of an orphaning deletion have no owner any more.
_WORKLOADS = ("TrainJob", "JobSet", "PyTorchJob", "Job")
_PARTS = ("Service", "ConfigMap", "Secret")
_CLAIMS = "ResourceClaimTemplate"

#: A run without a workload is being submitted, unless its parts are older: its ConfigMaps are made first.
SUBMITTING_S = 300.0


@dataclass(frozen=True)
class Removed:
    """``kind/name`` of an object that goes, and why."""

    name: str
    why: str


def clean_up(cluster: Cluster, *, everything: bool, dry_run: bool = False) -> list[Removed]:
    """Delete the objects of ended runs (with ``everything``, of all); what went and why.

    Raises SeatrialError naming the missing permission.
    """
    namespace = cluster.namespace
    paths = {kind: f"{RESOURCES[kind][0]}/namespaces/{namespace}/{RESOURCES[kind][1]}" for kind in RESOURCES}
    paths["Pod"] = f"/api/v1/namespaces/{namespace}/pods"
    found = {kind: _ours(cluster, paths[kind], RESOURCES[kind][0]) for kind in (*_WORKLOADS, *_PARTS)}
    found["Pod"] = _ours(cluster, paths["Pod"])
    if (version := cluster.call(served_version(cluster))) is not None:
        paths[_CLAIMS] = f"{GROUP}/{version}/namespaces/{namespace}/{RESOURCES[_CLAIMS][1]}"
        found[_CLAIMS] = _ours(cluster, paths[_CLAIMS], owned=True)
    ended = reasons(found, time.time(), everything=everything)
    removed = []
    for kind, items in found.items():
        for item in items:
            why = ended.get(_run(item))
            if why is None:
                continue
            if not dry_run:
                cluster.delete(f"{paths[kind]}/{item['metadata']['name']}")
            removed.append(Removed(f"{kind.lower()}/{item['metadata']['name']}", why))
    return removed


def reasons(
    found: Mapping[str, Sequence[Mapping[str, Any]]], now: float, *, everything: bool = False
) -> dict[str, str]:
    """Run → why its objects go; runs that stay are not in it. Pure.

    Args:
        found: kind → objects with our label, as the API has them.
    """
    runs = {_run(item) for items in found.values() for item in items}
    if everything:
        return dict.fromkeys(runs, "--all takes every run")
    why = {run: _reason(run, {kind: [i for i in items if _run(i) == run] for kind, items in found.items()}, now)
           for run in runs}  # fmt: skip
    return {run: said for run, said in why.items() if said is not None}


def _reason(run: str, its: Mapping[str, Sequence[Mapping[str, Any]]], now: float) -> str | None:
    """Why the objects of one run go, or None for a run that may be alive."""
    living = [pod for pod in map(read_pod, map(dict, its.get("Pod", ()))) if not pod.ended]
    workloads = [(kind, item) for kind in _WORKLOADS for item in its.get(kind, ())]
    if workloads:
        ends = [end_of(item.get("status") or {}) for _, item in workloads]
        if None in ends:
            return None
        worst = next((end for end in ends if end is not None and not end.well), ends[0])
        assert worst is not None, "every workload has ended"
        if living and worst.well:
            return None  # the last pods are finishing
        return f"its {workloads[0][0]} says {worst.type}" + (f": {worst.message}" if worst.message else "")
    if living:
        return None
    if not run:
        return "it belongs to no run"
    age_s = now - max(_made(item) for items in its.values() for item in items)
    return "its run has no workload any more" if age_s > SUBMITTING_S else None


def _made(item: Mapping[str, Any]) -> float:
    try:
        return calendar.timegm(time.strptime(item["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    except (KeyError, ValueError):
        return 0.0


def _ours(cluster: Cluster, path: str, api: str | None = None, *, owned: bool = False) -> list[dict[str, Any]]:
    """Objects with our label; none where the cluster has no such kind.

    Args:
        api: of the kind: who may not list what is not there is told 403, not 404.
        owned: they go with their workload; where they may not be listed, they are left to that.
    """
    try:
        items: list[dict[str, Any]] = cluster.get(path, labelSelector=f"{MANAGED_BY}=seatrial")["items"]
    except ApiError as error:
        if error.status == 404 or (error.status == 403 and owned):
            return []
        if error.status == 403 and api is not None and cluster.find(api) is None:
            return []
        raise
    return items


def _run(item: Mapping[str, Any]) -> str:
    return str(item["metadata"].get("labels", {}).get(RUN_LABEL, ""))
