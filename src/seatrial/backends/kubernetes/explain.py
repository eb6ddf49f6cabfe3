"""Why a pod does not run: what the scheduler and the kubelet say, with the facts that they leave out. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seatrial.backends.kubernetes.containers import own_container
from seatrial.backends.kubernetes.devices import WHOLE, Offer
from seatrial.backends.kubernetes.pods import Pod
from seatrial.backends.kubernetes.survey import Node
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.findings.known import mid_sentence
from seatrial.findings.match import first_in


@dataclass(frozen=True)
class Surroundings:
    """What is known around the pod.

    Attributes:
        item: the pod as the API has it.
        offers: node → the devices that it offers to claims; None when they may not be listed.
        nodes: None when they may not be listed. holders: (namespace/pod, GPUs) of pods that hold some, None likewise.
        pods: of the run, each of which asks for the same.
    """

    item: dict[str, Any]
    gpu_resource: str
    nodes: tuple[Node, ...] | None = None
    holders: tuple[tuple[str, int], ...] | None = None
    pods: int = 1
    offers: Mapping[str, Offer] | None = None

    @property
    def wanted_gpus(self) -> int:
        limits = own_container(self.item.get("spec", {})).get("resources", {}).get("limits", {})
        return int(limits.get(self.gpu_resource, 0))


def explain(pod: Pod, reason: str, message: str, around: Surroundings) -> Finding | None:
    """What holds this pod up, or None for what is no trouble.

    Args:
        reason, message: of an event about it, or of its waiting container.
    """
    said = f"{reason}: {message}"
    match = first_in(said, ("kubernetes",))
    if match is None or (match.known.id == "k8s-init-crashes" and pod.waiting_on is None):
        return None  # of the run's own container that is started again its output tells more
    look = _FACTS.get(match.known.id)
    facts = look(message, around) if look else Facts()
    known = by_id(facts.id or match.known.id)
    image = _image(pod, message, around)
    of_pod = {"pod": pod.name, "node": pod.host or "", "image": image, "container": pod.waiting_on or ""}
    values = {**match.values, **of_pod, **facts.values}
    finding = known.finding([f"{pod.name}: {said}"[:300]], values=values, cause=facts.cause)
    if known.severity == "warning" and known.id not in ("k8s-evicted", "k8s-node-lost"):
        finding.severity = "error"  # a cluster without GPUs is a warning to doctor, and stops this pod
    meant = {**dict.fromkeys(_ABOUT_THE_IMAGE, image), "k8s-init-crashes": pod.waiting_on or ""}
    told = facts.told or meant.get(known.id, "")
    finding.message = f"Node {pod.node}: {mid_sentence(finding.message)}" + (f": {told}" if told else "")
    return finding


def _image(pod: Pod, message: str, around: Surroundings) -> str:
    """The image that is meant: that of the message, of what waits, or the run's own. Sidecars have images, too."""
    named = re.search(r'image (?:tag )?"([^"]+)"', message)
    own = str(own_container(around.item.get("spec", {})).get("image", ""))
    return named[1] if named else pod.waiting_image or own


def gpu_holders(pods: Sequence[dict[str, Any]], gpu_resource: str) -> tuple[tuple[str, int], ...]:
    """(namespace/name, GPUs) of the pods that hold GPUs on a node, most first."""
    held = []
    for item in pods:
        if item.get("status", {}).get("phase") in ("Succeeded", "Failed") or not item.get("spec", {}).get("nodeName"):
            continue
        containers = item["spec"].get("containers") or []
        count = sum(int(c.get("resources", {}).get("limits", {}).get(gpu_resource, 0)) for c in containers)
        if count:
            held.append((f"{item['metadata']['namespace']}/{item['metadata']['name']}", count))
    return tuple(sorted(held, key=lambda one: (-one[1], one[0])))


@dataclass(frozen=True)
class Facts:
    """What is known here of a failure besides the catalogue's words.

    Attributes:
        told: behind the message. values: for the fix and the cause. id: of the entry that fits better.
    """

    told: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    cause: str | None = None


def _gpus(message: str, around: Surroundings) -> Facts:
    """Insufficient nvidia.com/gpu: how many there are, who has them, which node would fit."""
    wanted, resource = around.wanted_gpus, around.gpu_resource
    if around.nodes is None:
        return Facts(f"{wanted} {resource} requested; no permission to list nodes")
    with_gpus = [node for node in around.nodes if node.capacity or node.allocatable]
    if not with_gpus:
        others = ", ".join(sorted({name for node in around.nodes for name in node.offers}))
        cause = f"The nodes offer {others} instead" if others else None
        return Facts(resource, id="k8s-no-gpu-resource", cause=cause)
    allocatable = sum(node.allocatable for node in with_gpus)
    unhealthy = sum(max(0, node.capacity - node.allocatable) for node in with_gpus)
    held = sum(count for _, count in around.holders or ())
    told = f"{wanted} {resource} requested, {allocatable} allocatable on {_nodes(len(with_gpus))}"
    if unhealthy:
        told += f", {unhealthy} unhealthy"
    if around.holders:
        names = ", ".join(f"{name} ({count})" for name, count in around.holders[:4])
        told += f", {held} held by {names}" + (" …" if len(around.holders) > 4 else "")
    best = max(with_gpus, key=lambda node: node.allocatable)
    if best.allocatable >= wanted:
        return Facts(told, cause=f"All are in use; {best.name} has the capacity once they are free")
    return _smaller(told, around, best)


def _smaller(told: str, around: Surroundings, best: Node) -> Facts:
    """No node can ever hold the pod: as many GPUs on more nodes, where they fit, else what there is."""
    selector = around.item.get("spec", {}).get("nodeSelector") or {}
    usable = [
        node.allocatable
        for node in around.nodes or ()
        if node.ready and not node.unschedulable and selector.items() <= node.labels.items()
    ]
    total = around.wanted_gpus * around.pods
    for gpus in range(max(usable, default=0), 0, -1):
        pods = -(-total // gpus)
        if sum(count // gpus for count in usable) >= pods and total % gpus == 0:
            values = {"node": best.name, "most": str(best.allocatable), "gpus": str(gpus), "nodes": str(pods)}
            return Facts(told, values, id="k8s-nodes-too-small")
    most = max(usable, default=0)
    alike = sum(count >= most for count in usable)
    flags = f"--gpus {most}" + (f" --nodes {alike}" if alike > 1 else "")
    values = {"total": str(sum(usable)), "gpus": str(most), "flags": flags}
    return Facts(told, values, id="k8s-cluster-too-small") if most else Facts(told)


def _half(resource: str, asked: str) -> str:
    """The flag that asks for half of one of our own requests, such as ``8`` CPUs or ``8Gi``."""
    count = float(asked.removesuffix("Gi"))
    return f"--cpus {count / 2:g}" if resource == "cpu" else f"--memory {count * 512:g}MB"


def _resources(message: str, around: Surroundings) -> Facts:
    """Insufficient cpu or memory: whose request it is. One without a limit is ours (manifests/pod.py, resources)."""
    what = sorted(set(re.findall(r"Insufficient ([\w./-]+?)(?=[,.\s]|$)", message)))
    resources = own_container(around.item.get("spec", {})).get("resources", {})
    asked, limits = resources.get("requests", {}), resources.get("limits", {})
    ours = [one for one in what if one in ("cpu", "memory") and one in asked and one not in limits]
    if ours and ours == what:
        told = " and ".join(f"{one} {asked[one]}" for one in ours)
        values = {"resource": ", ".join(ours), "asked": told, "flags": " ".join(_half(one, asked[one]) for one in ours)}
        return Facts(told, values, id="k8s-own-request")
    return Facts(values={"resource": ", ".join(what)})


def _taint(message: str, around: Surroundings) -> Facts:
    taints = sorted(set(re.findall(r"taint[s]? \{([^}]*)\}", message)))
    if not taints:
        return Facts()
    key = taints[0].split(":")[0].split("=")[0].strip()
    return Facts(", ".join(taint.rstrip(": ").strip() for taint in taints), {"key": key})


def _selector(message: str, around: Surroundings) -> Facts:
    wanted = around.item.get("spec", {}).get("nodeSelector") or {}
    shown = ", ".join(f"{key}={value}" for key, value in wanted.items())
    have = ""
    if around.nodes is not None and wanted:
        key = next(iter(wanted))
        values = sorted({node.labels[key] for node in around.nodes if key in node.labels})
        have = f"; {key} is {', '.join(values)}" if values else f"; no node has the label {key}"
    return Facts((shown or message) + have)


def _claims(message: str, around: Surroundings) -> Facts:
    """How many devices of each size the nodes offer: the scheduler does not say what it lacks."""
    if around.offers is None:
        return Facts("no permission to list ResourceSlices, which tell what the nodes offer")
    counts = Counter[str]()
    for offer in around.offers.values():
        counts.update(offer.counts)
    offered = ", ".join(f"{count} {'whole GPUs' if what == WHOLE else what}" for what, count in sorted(counts.items()))
    return Facts(f"{offered} on {_nodes(len(around.offers))}, also those in use" if offered else "no node offers any")


def _message(message: str, around: Surroundings) -> Facts:
    return Facts(message)


#: Entry of the catalogue → what is looked up for it.
_FACTS: dict[str, Callable[[str, Surroundings], Facts]] = {
    "k8s-insufficient-gpus": _gpus,
    "k8s-claims": _claims,
    "k8s-insufficient-resources": _resources,
    "k8s-gpu-taint": _taint,
    "k8s-taint": _taint,
    "k8s-node-selector": _selector,
    "k8s-config-missing": _message,
    "k8s-evicted": _message,
}

_ABOUT_THE_IMAGE = (
    "k8s-image-not-there",
    "k8s-image-pull",
    "k8s-image-denied",
    "k8s-image-unknown",
    "k8s-registry-unreachable",
    "k8s-node-disk-full",
)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
