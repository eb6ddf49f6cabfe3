"""Facts of a cluster that planning needs: its version and its nodes' GPUs. What may not be read is reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seatrial.backends.kubernetes.client import ApiError
from seatrial.errors import SeatrialError
from seatrial.job.plan import EngineAddress

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

#: First version with stable Indexed Jobs. Source: kubernetes.io/blog, release notes of 1.24.
INDEXED_SINCE = (1, 24)
#: podFailurePolicy is on by default from here, and stable since 1.31. With it, a Job replaces a pod when that has ended
#: and not while it is ending (podReplacementPolicy Failed is the only value allowed then), so no two pods of one rank
#: write the same checkpoints. Source: kubernetes.io/docs/concepts/workloads/controllers/job.
DISRUPTIONS_SINCE = (1, 26)


@dataclass(frozen=True)
class Node:
    """A node's GPUs: ``capacity`` as the device plugin reported, ``allocatable`` those that are healthy.

    Attributes:
        offers: NVIDIA's resources that it has → the healthy ones; MIG slices of each size are a resource of their own.
        taints: those that keep pods off.
    """

    name: str
    capacity: int
    allocatable: int
    ready: bool
    unschedulable: bool = False
    product: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    offers: dict[str, int] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster at one moment.

    Attributes:
        version: ``(1, 29)``; git_version as the server prints it.
        address: None if it has not answered.
        kueue: Kueue is installed.
        nodes: None if they may not be listed, or do not report what the pods request: capacity is not judged then.
        unread: sentences about what could not be read.
    """

    version: tuple[int, int] = (1, 99)
    git_version: str = "unknown"
    namespace: str = "default"
    context: str | None = None
    address: EngineAddress | None = None
    kueue: bool = False
    nodes: tuple[Node, ...] | None = None
    unread: tuple[str, ...] = ()

    @property
    def indexed(self) -> bool:
        return self.version >= INDEXED_SINCE

    @property
    def disruptions_free(self) -> bool:
        return self.version >= DISRUPTIONS_SINCE


def survey(cluster: Cluster, gpu_resource: str = "nvidia.com/gpu") -> ClusterFacts:
    """Read the cluster's facts. Raises EngineUnavailableError if it does not answer."""
    # Requests are sequential: kr8s signs in again after a 403, and parallel requests then have no address (kr8s 0.20).
    version = cluster.get("/version")
    nodes: tuple[Node, ...] | None = None
    unread: tuple[str, ...] = ()
    try:
        nodes = tuple(read_node(item, gpu_resource) for item in cluster.get("/api/v1/nodes")["items"])
    except ApiError as error:
        unread = (f"no permission to list nodes, so free GPUs are unknown ({error.message})",)
    return ClusterFacts(
        version=read_version(version),
        git_version=version["gitVersion"],
        namespace=cluster.namespace,
        context=cluster.context,
        address=cluster.address(),
        kueue=_has_kueue(cluster),
        nodes=nodes,
        unread=unread,
    )


def read_version(reported: Mapping[str, str]) -> tuple[int, int]:
    """Read the answer of ``/version``: builds without a stamp leave ``major`` and ``minor`` empty."""
    named = re.match(r"v(\d+)\.(\d+)", reported.get("gitVersion", ""))
    return (int(named[1]), int(named[2])) if named else (_number(reported["major"]), _number(reported["minor"]))


def read_node(item: dict[str, Any], gpu_resource: str) -> Node:
    """Read a node of the API."""
    status, spec = item.get("status", {}), item.get("spec", {})
    labels = item["metadata"].get("labels", {})
    allocatable = status.get("allocatable", {})
    offers = {name: _number(count) for name, count in sorted(allocatable.items()) if name.startswith("nvidia.com/")}
    return Node(
        name=item["metadata"]["name"],
        capacity=_number(status.get("capacity", {}).get(gpu_resource, "0")),
        allocatable=_number(allocatable.get(gpu_resource, "0")),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])),
        unschedulable=bool(spec.get("unschedulable")),
        product=labels.get("nvidia.com/gpu.product"),
        labels=labels,
        offers={name: count for name, count in offers.items() if count},
        taints=tuple(taint for taint in spec.get("taints") or () if taint.get("effect") != "PreferNoSchedule"),
    )


def _has_kueue(cluster: Cluster) -> bool:
    """Look for Kueue in discovery, which everybody may read; its version differs from cluster to cluster."""
    try:
        return bool(cluster.get("/apis/kueue.x-k8s.io").get("versions"))
    except SeatrialError:
        return False


def _number(text: str) -> int:
    """Read ``"20+"`` as 20: providers add a plus to the minor version."""
    digits = "".join(character for character in str(text) if character.isdigit())
    return int(digits or 0)
