"""How many GPUs each pod asks for, judged by what the cluster's nodes have."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.backends.kubernetes.devices import WHOLE
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.errors import CapacityError, GpuRequestError
from seatrial.job.cluster import GpuClaim
from seatrial.job.model import Job
from seatrial.job.plan import Choice, Injection
from seatrial.planning.cluster.claims import MIG_RESOURCE, Way, gpu_way
from seatrial.planning.site import GpuPlan


@dataclass(frozen=True)
class PodGpus:
    """GPUs of each pod. ``facts`` are the cluster's, with each node's count of what the pods ask for."""

    plan: GpuPlan
    choice: Choice
    facts: ClusterFacts
    warnings: tuple[str, ...] = ()
    claim: GpuClaim | None = None


def pod_gpus(job: Job, facts: ClusterFacts) -> PodGpus:
    """Raises GpuRequestError for anything but a count, CapacityError when no node has so many and that is required."""
    request = job.gpus
    way = gpu_way(job, facts)
    if request.kind == "none":
        return PodGpus(GpuPlan("none", 0, "none"), _choice("none", "--gpus none"), way.facts)
    if request.kind == "auto":
        return _auto(job, way)
    if request.kind != "count" or request.count is None:
        raise GpuRequestError(
            f"--gpus {request}: on Kubernetes the scheduler picks the GPUs, so only a count can be requested",
            run="seatrial run … --gpus 1   # per pod; --nodes N for several pods",
        )
    if request.share:
        raise GpuRequestError(
            f"--gpus {request}: Kubernetes hands out whole GPUs and MIG slices, no parts of one",
            run="seatrial run … --gpus mig-1g.10gb   # or --gpus 1",
        )
    if request.count > 1 and way.name.startswith(MIG_RESOURCE):
        raise GpuRequestError(
            f"{request.count} {way.name} per pod: CUDA gives a process one MIG slice and no other GPU",
            run="seatrial run … --gpus 1 --nodes N",
        )
    warning = _capacity_problem(request.count, way)
    if warning is not None and job.kubernetes.require_capacity:
        raise CapacityError(warning, cause="--require-capacity", run="kubectl get nodes -L nvidia.com/gpu.product")
    warnings = (*way.warnings, *([warning] if warning else []))
    reason = "; ".join(filter(None, [f"--gpus {request}", way.reason]))
    return _of(request.count, way, _choice(f"{request.count} {way.name} per pod", reason), warnings)


def _auto(job: Job, way: Way) -> PodGpus:
    if job.image.target is not None:
        reason = f"built for {job.image.target}"
    elif any(node.allocatable for node in way.facts.nodes or ()):
        reason = "a node has some"
    else:
        reason = "no permission to list nodes" if way.facts.nodes is None else f"no node has {way.name}"
        others = _offered(way.facts.nodes or ())
        reason += f"; they offer {others}" if others else ""
        return PodGpus(GpuPlan("auto-cpu", 0, "none"), _choice("none", reason), way.facts, way.warnings)
    reason = "; ".join(filter(None, [reason, way.reason]))
    return _of(1, way, _choice(f"1 {way.name}", reason), way.warnings)


def _of(count: int, way: Way, choice: Choice, warnings: tuple[str, ...]) -> PodGpus:
    injection: Injection = "device-plugin" if way.claim is None else "resource-claim"
    return PodGpus(GpuPlan("required", count, injection), choice, way.facts, warnings, way.claim)


def _choice(value: str, reason: str) -> Choice:
    return Choice(what="gpus", value=value, reason=reason)


def _offered(nodes: tuple[Node, ...]) -> str:
    """What the nodes have instead, as names of resources or sizes of slices."""
    return ", ".join(sorted({"whole GPUs" if name == WHOLE else name for node in nodes for name in node.offers}))


def _capacity_problem(count: int, way: Way) -> str | None:
    """More GPUs a pod than any node has: it may still come true, since pools scale from zero."""
    nodes = way.facts.nodes
    if nodes is None:
        return None
    best = max(nodes, key=lambda node: node.capacity, default=None)
    if best is None or best.capacity == 0:
        others = _offered(nodes)
        told = f"; its nodes offer {others}" if others else ""
        return f"No node of this cluster has {way.name} now{told}: pods wait until one is added" + _single(way, nodes)
    if best.capacity < count:
        return f"No node has {count} {way.name}: the largest, {best.name}, has {best.capacity}"
    return None


def _single(way: Way, nodes: tuple[Node, ...]) -> str:
    """Slices of the same size that nodes call GPUs: the device plugin's MIG strategy ``single``.

    Source: NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery (the product's label ends in ``-MIG-1g.10gb``).
    """
    profile = way.name.removeprefix(MIG_RESOURCE)
    products = [node.product for node in nodes if node.product and node.product.endswith(f"-MIG-{profile}")]
    if not products or profile == way.name:
        return ""
    return f'. Some call such slices GPUs: --gpus 1 with node_selector {{"nvidia.com/gpu.product" = "{products[0]}"}}'
