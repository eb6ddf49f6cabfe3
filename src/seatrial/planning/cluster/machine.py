"""What a cluster's nodes say of their GPUs and driver, as the machine that an image is built for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.version import Version

from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.job.model import Job
from seatrial.job.units import format_bytes
from seatrial.stack.machine import Machine, this_machine

#: Labels of NVIDIA's GPU feature discovery: of 0.17 and later, and of those before.
#: Source: github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery/README.md.
_PRODUCT, _MAJOR, _MINOR = "nvidia.com/gpu.product", "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
_DRIVER = "nvidia.com/cuda.driver-version.full"
_MEMORY_MIB = "nvidia.com/gpu.memory"
_DRIVER_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")


def cluster_machine(facts: ClusterFacts, node_selector: Mapping[str, str]) -> Machine:
    """The kinds of GPUs on the nodes that the pods may land on, and the oldest driver there.

    Nodes without the labels of GPU feature discovery, or a DRA driver's words, say nothing; without any, no rule about
    GPUs is applied.
    """
    nodes = _in_question(facts, node_selector)
    kinds = sorted({(product, _capability(node)) for node in nodes if (product := _product(node))}, key=str)
    machine = this_machine(_oldest(_driver(node) for node in nodes), kinds)
    return Machine(machine.driver, machine.gpus, "the cluster")


def gpu_memory_warnings(job: Job, facts: ClusterFacts) -> tuple[str, ...]:
    """A ``--gpu-memory`` that is more than any GPU has which the pods may get, as far as the nodes say."""
    limit_bytes, told = job.gpu_memory_bytes, set()
    for node in _in_question(facts, job.kubernetes.node_selector):
        if not node.labels.get(_MEMORY_MIB, "").isdigit():
            return ()
        told.add(int(node.labels[_MEMORY_MIB]) * 2**20)
    if limit_bytes is None or not told or limit_bytes <= max(told):
        return ()
    largest = format_bytes(max(told))
    return (f"--gpu-memory {format_bytes(limit_bytes)}: the largest GPU of this cluster has {largest}",)


def _in_question(facts: ClusterFacts, node_selector: Mapping[str, str]) -> list[Node]:
    """Nodes with GPUs that the pods may land on."""
    return [node for node in facts.nodes or () if node.capacity and node_selector.items() <= node.labels.items()]


def _product(node: Node) -> str | None:
    return node.labels.get(_PRODUCT) or node.gpu.get("product")


def _capability(node: Node) -> str | None:
    """``9.0``; a driver of Dynamic Resource Allocation tells it as a version of three parts."""
    major, minor = node.labels.get(_MAJOR), node.labels.get(_MINOR)
    if major and minor:
        return f"{major}.{minor}"
    return ".".join(node.gpu["capability"].split(".")[:2]) if "capability" in node.gpu else None


def _driver(node: Node) -> str | None:
    parts = [node.labels.get(name, "") for name in _DRIVER_PARTS]
    return node.labels.get(_DRIVER) or ".".join(filter(None, parts)) or node.gpu.get("driver")


def _oldest(drivers: Iterable[str | None]) -> str | None:
    return min((driver for driver in drivers if driver), key=Version, default=None)
