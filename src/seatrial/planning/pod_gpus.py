"""GPUs of each pod: a device plugin's resource, judged by the cluster's nodes, or a claim. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.errors import CapacityError, GpuRequestError
from seatrial.job.cluster import GpuClaim
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.job.units import format_bytes
from seatrial.planning.site import GpuPlan
from seatrial.stack.machine import TargetMachine, this_machine

#: NVIDIA's device classes. Source: github.com/kubernetes-sigs/dra-driver-nvidia-gpu v25, deployments/helm.
GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"

#: Prefix of a MIG slice's resource, before its profile. Source: NVIDIA/k8s-device-plugin, docs on mig.strategy mixed.
MIG_RESOURCE = "nvidia.com/mig-"

#: Labels of NVIDIA's GPU feature discovery: of 0.17 and later, and of those before.
#: Source: github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery/README.md.
_PRODUCT, _MAJOR, _MINOR = "nvidia.com/gpu.product", "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
_DRIVER = "nvidia.com/cuda.driver-version.full"
_MEMORY_MIB = "nvidia.com/gpu.memory"
_DRIVER_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")


@dataclass(frozen=True)
class PodGpus:
    """GPUs of each pod.

    Attributes:
        facts: the cluster's; without nodes where GPUs are claimed, since claims are not counted.
    """

    plan: GpuPlan
    choice: Choice
    facts: ClusterFacts
    warnings: tuple[str, ...] = ()
    claim: GpuClaim | None = None


def pod_resource(job: Job) -> str:
    """Return the device plugin's name of the requested GPUs; it writes a dot for the plus of a profile."""
    profile = job.gpus.profile
    return f"{MIG_RESOURCE}{profile.replace('+', '.')}" if profile else job.kubernetes.gpu_resource


def pod_gpus(job: Job, facts: ClusterFacts) -> PodGpus:
    """Plan a pod's GPUs. Raises GpuRequestError for anything but a count, CapacityError if no node has enough."""
    request, profile = job.gpus, job.gpus.profile
    if request.kind == "none":
        return PodGpus(GpuPlan("none", 0, "none"), _choice("none", "--gpus none"), facts)
    claim, name = None, pod_resource(job)
    if job.kubernetes.gpu_claims:
        claim = GpuClaim(device_class=MIG_CLASS if profile else GPU_CLASS, profile=profile)
        name = f"{claim.device_class} ({profile})" if profile else claim.device_class
        facts = replace(facts, nodes=None)
    claimed = "" if claim is None else "; [kubernetes] gpu_claims"
    plan = GpuPlan("required", request.count or 1, "device-plugin" if claim is None else "resource-claim")
    if request.kind == "auto":
        found, reason = _auto(job, name, claim, facts)
        if not found:
            return PodGpus(GpuPlan("auto-cpu", 0, "none"), _choice("none", reason), facts)
        return PodGpus(plan, _choice(f"1 {name}", reason + claimed), facts, claim=claim)
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
    if request.count > 1 and name.startswith(MIG_RESOURCE):
        raise GpuRequestError(
            f"{request.count} {name} per pod: CUDA gives a process one MIG slice and no other GPU",
            run="seatrial run … --gpus 1 --nodes N",
        )
    warning = _capacity_problem(request.count, name, facts)
    if warning is not None and job.kubernetes.require_capacity:
        raise CapacityError(warning, cause="--require-capacity", run="kubectl get nodes -L nvidia.com/gpu.product")
    choice = _choice(f"{request.count} {name} per pod", f"--gpus {request}{claimed}")
    return PodGpus(plan, choice, facts, () if warning is None else (warning,), claim)


def _auto(job: Job, name: str, claim: GpuClaim | None, facts: ClusterFacts) -> tuple[bool, str]:
    """Return whether ``auto`` takes a GPU, and why."""
    if job.image.target is not None:
        return True, f"built for {job.image.target}"
    if claim is not None:
        return True, "--gpus auto"
    if any(node.allocatable for node in facts.nodes or ()):
        return True, "a node has some"
    reason = "the nodes cannot be listed" if facts.nodes is None else f"no node has {name}"
    others = _offered(facts.nodes or ())
    return False, f"{reason}; they offer {others}" if others else reason


def _choice(value: str, reason: str) -> Choice:
    return Choice(what="gpus", value=value, reason=reason)


def _offered(nodes: tuple[Node, ...]) -> str:
    """Return the names of the resources that the nodes have instead."""
    return ", ".join(sorted({name for node in nodes for name in node.offers}))


def _capacity_problem(count: int, name: str, facts: ClusterFacts) -> str | None:
    """Return a warning if a pod requests more GPUs than any node has: a pool may still add one."""
    nodes = facts.nodes
    if nodes is None:
        return None
    best = max(nodes, key=lambda node: node.capacity, default=None)
    if best is None or best.capacity == 0:
        others = _offered(nodes)
        offered = f"; its nodes offer {others}" if others else ""
        return f"No node of this cluster has {name} now{offered}: pods wait until one is added" + _single(name, nodes)
    if best.capacity < count:
        return f"No node has {count} {name}: the largest, {best.name}, has {best.capacity}"
    return None


def _single(name: str, nodes: tuple[Node, ...]) -> str:
    """Return advice for slices that nodes present as GPUs: the device plugin's MIG strategy ``single``.

    Source: NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery (the product's label ends in ``-MIG-1g.10gb``).
    """
    profile = name.removeprefix(MIG_RESOURCE)
    products = [node.product for node in nodes if node.product and node.product.endswith(f"-MIG-{profile}")]
    if not products or profile == name:
        return ""
    return f'. Some call such slices GPUs: --gpus 1 with node_selector {{"nvidia.com/gpu.product" = "{products[0]}"}}'


# ----------------------------------------------------------------------------------- the nodes as a machine


def cluster_machine(facts: ClusterFacts, node_selector: Mapping[str, str]) -> TargetMachine:
    """Return the kinds of GPUs on the nodes that the pods may land on, and the oldest driver there.

    Nodes without the labels of GPU feature discovery add nothing; without any, no rule about GPUs is applied.
    """
    nodes = _eligible(facts, node_selector)
    kinds = sorted({(node.labels[_PRODUCT], _capability(node)) for node in nodes if _PRODUCT in node.labels}, key=str)
    machine = this_machine(_oldest(_driver(node) for node in nodes), kinds)
    return TargetMachine(machine.driver, machine.gpus, "the cluster")


def gpu_memory_warnings(job: Job, facts: ClusterFacts) -> tuple[str, ...]:
    """Warn of a ``--gpu-memory`` above that of every GPU that the pods may get, if all nodes report theirs."""
    nodes = _eligible(facts, job.kubernetes.node_selector)
    sizes = [node.labels.get(_MEMORY_MIB, "") for node in nodes]
    if job.gpu_memory_bytes is None or not sizes or not all(size.isdigit() for size in sizes):
        return ()
    largest = max(int(size) for size in sizes) * 2**20
    if job.gpu_memory_bytes <= largest:
        return ()
    limit = format_bytes(job.gpu_memory_bytes)
    return (f"--gpu-memory {limit}: the largest GPU of this cluster has {format_bytes(largest)}",)


def _eligible(facts: ClusterFacts, node_selector: Mapping[str, str]) -> list[Node]:
    """Return the nodes with GPUs that the pods may land on."""
    return [node for node in facts.nodes or () if node.capacity and node_selector.items() <= node.labels.items()]


def _capability(node: Node) -> str | None:
    major, minor = node.labels.get(_MAJOR), node.labels.get(_MINOR)
    return f"{major}.{minor}" if major and minor else None


def _driver(node: Node) -> str | None:
    parts = [node.labels.get(name, "") for name in _DRIVER_PARTS]
    return node.labels.get(_DRIVER) or ".".join(filter(None, parts)) or None


def _oldest(drivers: Iterable[str | None]) -> str | None:
    return min((driver for driver in drivers if driver), key=Version, default=None)
