"""How many GPUs each pod asks for, judged by what the cluster's nodes have."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.backends.kubernetes.survey import ClusterFacts
from seatrial.errors import CapacityError, GpuRequestError
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.planning.site import GpuPlan


@dataclass(frozen=True)
class PodGpus:
    """GPUs of each pod."""

    plan: GpuPlan
    choice: Choice
    warnings: tuple[str, ...] = ()


def pod_gpus(job: Job, facts: ClusterFacts) -> PodGpus:
    """Raises GpuRequestError for anything but a count, CapacityError when no node has so many and that is required."""
    request = job.gpus
    resource = job.kubernetes.gpu_resource
    if request.kind == "none":
        return PodGpus(GpuPlan("none", 0, "none"), Choice(what="gpus", value="none", reason="--gpus none"))
    if request.kind == "auto":
        if job.image.target is not None:
            return PodGpus(
                _required(1), Choice(what="gpus", value=f"1 {resource}", reason=f"built for {job.image.target}")
            )
        if any(node.allocatable for node in facts.nodes or ()):
            return PodGpus(_required(1), Choice(what="gpus", value=f"1 {resource}", reason="a node has some"))
        reason = f"no node has {resource}" if facts.nodes is not None else "no permission to list nodes"
        return PodGpus(GpuPlan("auto-cpu", 0, "none"), Choice(what="gpus", value="none", reason=reason))
    if request.kind != "count" or request.count is None:
        raise GpuRequestError(
            f"--gpus {request}: on Kubernetes the scheduler picks the GPUs, so only a count can be requested",
            run="seatrial run … --gpus 1   # per pod; --nodes N for several pods",
        )
    warning = _capacity_problem(request.count, job, facts)
    if warning is not None and job.kubernetes.require_capacity:
        raise CapacityError(warning, cause="--require-capacity", run="kubectl get nodes -L nvidia.com/gpu.product")
    choice = Choice(what="gpus", value=f"{request.count} {resource} per pod", reason=f"--gpus {request}")
    return PodGpus(_required(request.count), choice, (warning,) if warning else ())


def _required(count: int) -> GpuPlan:
    return GpuPlan("required", count, "device-plugin")


def _capacity_problem(count: int, job: Job, facts: ClusterFacts) -> str | None:
    """More GPUs a pod than any node has: it may still come true, since pools scale from zero."""
    resource = job.kubernetes.gpu_resource
    if facts.nodes is None:
        return None
    best = max(facts.nodes, key=lambda node: node.capacity, default=None)
    if best is None or best.capacity == 0:
        return f"No node of this cluster has {resource} now: pods wait until one is added"
    if best.capacity < count:
        return f"No node has {count} {resource}: the largest, {best.name}, has {best.capacity}"
    return None
