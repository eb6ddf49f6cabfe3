"""Whether pods claim their GPUs by Dynamic Resource Allocation or ask for the device plugin's resource. Pure."""

from __future__ import annotations

from dataclasses import replace

from seatrial.backends.kubernetes.devices import GPU_CLASS, MIG_CLASS, VERSIONS, WHOLE
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.errors import UsageError
from seatrial.findings.catalogue import by_id
from seatrial.job.cluster import GpuClaim
from seatrial.job.cluster_config import ClusterOptions
from seatrial.job.model import Job
from seatrial.system.records import dataclass

PLUGIN_RESOURCE = str(ClusterOptions.model_fields["gpu_resource"].default)

#: Of resource names, before the profile of a MIG slice. Source: NVIDIA/k8s-device-plugin, docs on mig.strategy mixed.
MIG_RESOURCE = "nvidia.com/mig-"


@dataclass(frozen=True)
class Way:
    """How the pods get GPUs.

    Attributes:
        name: of what they ask for: a resource, or a device class.
        facts: the cluster's, with each node's count of just that.
        warnings: what is not known of it.
    """

    name: str
    claim: GpuClaim | None
    reason: str
    facts: ClusterFacts
    warnings: tuple[str, ...] = ()


def pod_resource(job: Job) -> str:
    """The device plugin's name of what is asked for; it writes a dot for the plus of a profile."""
    profile = job.gpus.profile
    return f"{MIG_RESOURCE}{profile.replace('+', '.')}" if profile else job.kubernetes.gpu_resource


def gpu_way(job: Job, facts: ClusterFacts) -> Way:
    """Raises UsageError where claims are asked for and the cluster has none."""
    asked, resource = job.kubernetes.gpu_claims, pod_resource(job)
    plugin = Way(resource, None, "", facts)
    device_class = MIG_CLASS if job.gpus.profile else GPU_CLASS
    if job.gpus.kind == "none" or asked is False:
        return plugin
    there = facts.claimable
    if asked is None:
        if resource != PLUGIN_RESOURCE and not job.gpus.profile:
            return plugin  # of another vendor, or named with care
        if device_class not in (there.classes or ()) or facts.nodes is None:
            return plugin
        if any(node.capacity for node in facts.nodes):
            return plugin
        reason = f"no node has {resource}, but the cluster has the DeviceClass {device_class}"
        return _claim(job, facts, device_class, reason)
    if facts.git_version != "unknown":
        _refuse_missing(facts, device_class)
    way = _claim(job, facts, device_class, "[kubernetes] gpu_claims")
    unknown = there.api is not None and there.classes is None
    told = f"no permission to list DeviceClasses, so it is not known whether {device_class} is there"
    return replace(way, warnings=(told,)) if unknown else way


def _refuse_missing(facts: ClusterFacts, device_class: str) -> None:
    there = facts.claimable
    if there.api is None:
        raise UsageError(
            f"Kubernetes {facts.git_version} has no resource.k8s.io here, so pods cannot claim GPUs",
            cause="Dynamic Resource Allocation is on from Kubernetes 1.34; before, administrators turn it on",
            run="kubectl api-versions | grep resource.k8s.io   # or without [kubernetes] gpu_claims",
        )
    if there.classes is not None and device_class not in there.classes:
        known = by_id("k8s-device-class")
        raise UsageError(f"The cluster has no DeviceClass {device_class}", cause=known.cause, run=known.fix)


def _claim(job: Job, facts: ClusterFacts, device_class: str, reason: str) -> Way:
    profile = job.gpus.profile
    claim = GpuClaim(api=facts.claimable.api or VERSIONS[0], device_class=device_class, profile=profile)
    name = f"{device_class} ({profile})" if profile else device_class
    offers = facts.claimable.offers
    if facts.nodes is None or offers is None:
        return Way(name, claim, reason, replace(facts, nodes=None))
    nodes = tuple(_offering(node, facts, profile or WHOLE) for node in facts.nodes)
    return Way(name, claim, reason, replace(facts, nodes=nodes))


def _offering(node: Node, facts: ClusterFacts, what: str) -> Node:
    """The node with what it offers to claims in place of the device plugin's resources."""
    offer = (facts.claimable.offers or {}).get(node.name)
    count = offer.counts.get(what, 0) if offer else 0
    return replace(
        node,
        capacity=count,
        allocatable=count,
        offers=dict(offer.counts) if offer else {},
        gpu=offer.gpu if offer else {},
    )
