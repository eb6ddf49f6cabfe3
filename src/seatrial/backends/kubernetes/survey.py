"""What planning needs to know of a cluster: its version, its operators, its GPUs. What may not be read is said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seatrial.backends.kubernetes.devices import Claimable, claimable
from seatrial.backends.kubernetes.manifests.render import API_KINDS, RESOURCES
from seatrial.backends.kubernetes.operators import may_create, runtimes_retries
from seatrial.backends.kubernetes.problems import ApiError
from seatrial.errors import SeatrialError
from seatrial.job.cluster import Kind
from seatrial.job.plan import EngineAddress

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

#: Indexed Jobs are stable from here. Source: kubernetes.io/blog, release notes of 1.24.
INDEXED_SINCE = (1, 24)
#: podFailurePolicy is on by default from here, and stable since 1.31. With it, a Job replaces a pod when that has ended
#: and not while it is ending (podReplacementPolicy Failed is the only value allowed then), so no two pods of one rank
#: write the same checkpoints. Source: kubernetes.io/docs/concepts/workloads/controllers/job.
DISRUPTIONS_SINCE = (1, 26)

#: Kind → (API group, plural, the command that installs the operator).
OPERATORS: dict[Kind, tuple[str, str, str]] = {
    "pytorchjob": (
        "kubeflow.org",
        "pytorchjobs",
        'kubectl apply --server-side -k "github.com/kubeflow/trainer/manifests/overlays/standalone?ref=v1.9.4"',
    ),
    "trainjob": (
        "trainer.kubeflow.org",
        "trainjobs",
        'kubectl apply --server-side -k "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"',
    ),
    "jobset": (
        "jobset.x-k8s.io",
        "jobsets",
        "kubectl apply --server-side"
        " -f https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml",
    ),
}


#: Kind → the Deployment of its controller, as the operators' manifests name it.
CONTROLLERS: dict[Kind, str] = {
    "pytorchjob": "training-operator",
    "trainjob": "kubeflow-trainer-controller-manager",
    "jobset": "jobset-controller-manager",
}
#: Kind → label of its controller's Deployment, which has another name where a Helm chart made it.
#: Source: kubernetes-sigs/jobset v0.12.0 charts/jobset/templates/controller/_helpers.tpl.
_CONTROLLER_LABELS: dict[Kind, str] = {"jobset": "app.kubernetes.io/name=jobset"}


@dataclass(frozen=True)
class Node:
    """A node's GPUs: ``capacity`` as the device plugin reported, ``allocatable`` those that are healthy.

    Attributes:
        offers: NVIDIA's resources that it has → how many are healthy; sizes of MIG slices are resources of their own.
        gpu: product, capability and driver of its GPUs, where a driver tells them by other ways than labels.
    """

    name: str
    capacity: int
    allocatable: int
    ready: bool
    unschedulable: bool = False
    product: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, str], ...] = ()
    offers: dict[str, int] = field(default_factory=dict)
    gpu: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster at one moment.

    Attributes:
        version: ``(1, 29)``; git_version as the server prints it.
        operators: kinds whose CRD is there.
        address: None when it has not answered.
        kueue: Kueue is there.
        retries: how often the TrainJobs' runtime starts again what failed; None where that is not known.
        idle: those of them whose controller is not: their objects would be stored, and nothing would come of them.
        forbidden: those of them that this user may not create in this namespace.
        nodes: None when they may not be listed: then nothing is said about capacity.
        unread: sentences about what could not be read.
        claimable: devices that pods can claim.
    """

    version: tuple[int, int] = (1, 99)
    git_version: str = "unknown"
    namespace: str = "default"
    context: str | None = None
    address: EngineAddress | None = None
    operators: tuple[Kind, ...] = ()
    idle: tuple[Kind, ...] = ()
    forbidden: tuple[Kind, ...] = ()
    kueue: bool = False
    retries: int | None = None
    nodes: tuple[Node, ...] | None = None
    unread: tuple[str, ...] = ()
    claimable: Claimable = field(default_factory=Claimable)

    @property
    def indexed(self) -> bool:
        return self.version >= INDEXED_SINCE

    @property
    def disruptions_free(self) -> bool:
        return self.version >= DISRUPTIONS_SINCE


def survey(cluster: Cluster, gpu_resource: str = "nvidia.com/gpu", runtime: str = "torch-distributed") -> ClusterFacts:
    """Ask the cluster. Raises EngineUnavailableError when it does not answer."""
    return cluster.call(_survey(cluster, gpu_resource, runtime))


async def _survey(cluster: Cluster, gpu_resource: str, runtime: str) -> ClusterFacts:
    import asyncio  # facts are read without it

    version = await cluster.request("GET", "/version")  # signs in, and tells whether there is anybody
    found = await asyncio.gather(*(_has_crd(cluster, kind) for kind in OPERATORS))
    operators = tuple(kind for kind, there in zip(OPERATORS, found, strict=True) if there)
    # One after the other: kr8s signs in again after a 403, and requests beside it then have no address (kr8s 0.20).
    nodes, unread = await _nodes(cluster, gpu_resource)
    idle = [kind for kind in operators if await _is_idle(cluster, kind)]
    namespace = await cluster.its_namespace()
    forbidden = [kind for kind in operators if not await may_create(cluster, *OPERATORS[kind][:2], namespace)]
    return ClusterFacts(
        version=read_version(version),
        git_version=version["gitVersion"],
        namespace=namespace,
        context=await cluster.its_context(),
        address=await cluster.its_address(),
        operators=operators,
        idle=tuple(idle),
        forbidden=tuple(forbidden),
        kueue=await _has_kueue(cluster),
        retries=await runtimes_retries(cluster, runtime) if "trainjob" in operators else None,
        nodes=nodes,
        unread=unread,
        claimable=await claimable(cluster),
    )


def read_version(told: Mapping[str, str]) -> tuple[int, int]:
    """Of what ``/version`` says: builds that nobody stamped leave ``major`` and ``minor`` empty."""
    named = re.match(r"v(\d+)\.(\d+)", told.get("gitVersion", ""))
    return (int(named[1]), int(named[2])) if named else (_number(told["major"]), _number(told["minor"]))


async def _nodes(cluster: Cluster, gpu_resource: str) -> tuple[tuple[Node, ...] | None, tuple[str, ...]]:
    """The nodes, or why they are not known."""
    try:
        listing = await cluster.request("GET", "/api/v1/nodes")
    except ApiError as error:
        return None, (f"no permission to list nodes, so free GPUs are unknown ({error.message})",)
    return tuple(read_node(item, gpu_resource) for item in listing["items"]), ()


def read_node(item: dict[str, Any], gpu_resource: str) -> Node:
    """A node of the API."""
    status, spec = item.get("status", {}), item.get("spec", {})
    labels = item["metadata"].get("labels", {})
    return Node(
        name=item["metadata"]["name"],
        capacity=_number(status.get("capacity", {}).get(gpu_resource, "0")),
        allocatable=_number(status.get("allocatable", {}).get(gpu_resource, "0")),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])),
        unschedulable=bool(spec.get("unschedulable")),
        product=labels.get("nvidia.com/gpu.product"),
        labels=labels,
        taints=tuple(spec.get("taints") or ()),
        offers=_offers(status.get("allocatable", {})),
    )


def _offers(allocatable: Mapping[str, str]) -> dict[str, int]:
    counts = {name: _number(count) for name, count in allocatable.items() if name.startswith("nvidia.com/")}
    return {name: count for name, count in sorted(counts.items()) if count}


async def _has_crd(cluster: Cluster, kind: Kind) -> bool:
    """Asked of discovery, which everybody may read; CRD objects are for administrators."""
    base, plural = RESOURCES[API_KINDS[kind]]
    try:
        found = await cluster.request("GET", base)
    except SeatrialError:
        return False
    return any(resource["name"] == plural for resource in found.get("resources", []))


async def _has_kueue(cluster: Cluster) -> bool:
    """Asked of discovery, like the CRDs; its version differs from cluster to cluster."""
    try:
        return bool((await cluster.request("GET", "/apis/kueue.x-k8s.io")).get("versions"))
    except SeatrialError:
        return False


async def _is_idle(cluster: Cluster, kind: Kind) -> bool:
    """Whether it is certain that nothing acts on this kind: no namespace has its controller's Deployment."""
    selectors = [{"fieldSelector": f"metadata.name={CONTROLLERS[kind]}"}]
    if kind in _CONTROLLER_LABELS:
        selectors.append({"labelSelector": _CONTROLLER_LABELS[kind]})
    for params in selectors:
        try:
            found = await cluster.request("GET", "/apis/apps/v1/deployments", params=params)
        except SeatrialError:  # may not be listed
            return False
        if found["items"]:
            return False
    return True


def _number(text: str) -> int:
    """``"20+"`` is 20: providers add a plus to the minor version."""
    digits = "".join(character for character in str(text) if character.isdigit())
    return int(digits or 0)
