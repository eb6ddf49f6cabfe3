"""Explain why pods do not run: events of the scheduler, kubelet and controllers, with the facts they omit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.backends.kubernetes.manifests import KINDS as WORKLOADS
from seatrial.backends.kubernetes.survey import OURS, Node, Pod, newest, own_container
from seatrial.findings.catalogue import by_id, mid_sentence
from seatrial.findings.finding import Finding
from seatrial.findings.match import Match, first_in
from seatrial.system.project_files import own_table

Object = Mapping[str, Any]

_LONGEST = 300


@dataclass(frozen=True)
class Surroundings:
    """Holds the facts around a pod.

    ``item``: the pod as the API has it. ``nodes``: None if they may not be listed. ``holders``: (namespace/pod, GPUs)
    of pods that hold some, None likewise. ``pods``: of the run, each of which requests the same.
    """

    item: dict[str, Any]
    nodes: tuple[Node, ...] | None = None
    holders: tuple[tuple[str, int], ...] | None = None
    pods: int = 1

    @property
    def container(self) -> dict[str, Any]:
        return own_container(self.item, self.item.get("spec", {}).get("containers"))

    @property
    def selector(self) -> dict[str, str]:
        return self.item.get("spec", {}).get("nodeSelector") or {}

    @property
    def gpu_resource(self) -> str:
        """Return the name of the GPUs that the pod requests."""
        limits = self.container.get("resources", {}).get("limits", {})
        return next((key for key in limits if "/" in key), "nvidia.com/gpu")

    @property
    def wanted_gpus(self) -> int:
        return int(self.container.get("resources", {}).get("limits", {}).get(self.gpu_resource, 0))


def explain(pod: Pod, reason: str, message: str, around: Surroundings) -> Finding | None:
    """Return why this pod does not run, by the reason and message of an event or a waiting container; else None."""
    text = f"{reason}: {message}"
    match = first_in(text, ("kubernetes",))
    if match is None or (match.known.id == "k8s-init-crashes" and pod.waiting_on is None):
        return None  # a run's own container that is started again explains itself in its output
    look = _FACTS.get(match.known.id)
    facts = look(message, around) if look else Facts()
    known = by_id(facts.id or match.known.id)
    named = re.search(r'image (?:tag )?"([^"]+)"', message)  # sidecars have images, too
    image = named[1] if named else pod.waiting_image or str(around.container.get("image", ""))
    of_pod = {"pod": pod.name, "node": pod.host or "", "image": image, "container": pod.waiting_on or ""}
    values = {**match.values, **of_pod, **facts.values}
    finding = known.finding([f"{pod.name}: {text}"[:_LONGEST]], values=values, cause=facts.cause, fix=facts.fix)
    if known.id in _ABOUT_THE_IMAGE and image.startswith("seatrial/"):  # built here, and pushed nowhere
        finding.fix = by_id("k8s-image-not-there").finding(values=of_pod).fix
    if known.severity == "warning" and known.id not in ("k8s-evicted", "k8s-node-lost"):
        finding.severity = "error"  # a cluster without GPUs is a warning to doctor, and stops this pod
    subject = image if known.id in _ABOUT_THE_IMAGE else of_pod["container"] if known.id == "k8s-init-crashes" else ""
    detail = facts.detail or subject
    finding.message = f"Node {pod.node}: {mid_sentence(finding.message)}" + (f": {detail}" if detail else "")
    return finding


def gpu_holders(pods: Sequence[Object], gpu_resource: str) -> tuple[tuple[str, int], ...]:
    """Return (namespace/name, GPUs) of the pods that hold GPUs on a node, most first."""
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
    """Holds facts of a failure that the catalogue does not have.

    ``detail``: behind the message. ``values``: for the fix and the cause. ``id``: of the entry that fits better.
    ``fix``: instead of that entry's.
    """

    detail: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    id: str | None = None
    cause: str | None = None
    fix: str | None = None


def _gpus(message: str, around: Surroundings) -> Facts:
    """Count for "Insufficient nvidia.com/gpu": how many there are, who has them, which node would fit."""
    wanted, resource = around.wanted_gpus, around.gpu_resource
    if around.nodes is None:
        return Facts(f"{wanted} {resource} requested; no permission to list nodes")
    if not (with_gpus := [node for node in around.nodes if node.capacity or node.allocatable]):
        others = ", ".join(sorted({name for node in around.nodes for name in node.offers}))
        cause = f"The nodes offer {others} instead" if others else None
        return Facts(resource, id="k8s-no-gpu-resource", cause=cause)
    allocatable = sum(node.allocatable for node in with_gpus)
    unhealthy = sum(max(0, node.capacity - node.allocatable) for node in with_gpus)
    on = "1 node" if len(with_gpus) == 1 else f"{len(with_gpus)} nodes"
    detail = f"{wanted} {resource} requested, {allocatable} allocatable on {on}"
    if unhealthy:
        detail += f", {unhealthy} unhealthy"
    if around.holders:
        names = ", ".join(f"{name} ({count})" for name, count in around.holders[:4])
        held = sum(count for _, count in around.holders)
        detail += f", {held} held by {names}" + (" …" if len(around.holders) > 4 else "")
    best = max(with_gpus, key=lambda node: node.allocatable)
    if best.allocatable >= wanted:
        return Facts(detail, cause=f"All are in use; {best.name} has the capacity once they are free")
    return _smaller(detail, around, best)


def _smaller(detail: str, around: Surroundings, best: Node) -> Facts:
    """Suggest, where no node can ever hold the pod, as many GPUs on more nodes if they fit, else what there is."""
    ready = (node for node in around.nodes or () if node.ready and not node.unschedulable)
    usable = [node.allocatable for node in ready if around.selector.items() <= node.labels.items()]
    total, most = around.wanted_gpus * around.pods, max(usable, default=0)
    for gpus in range(most, 0, -1):
        pods = -(-total // gpus)
        if sum(count // gpus for count in usable) >= pods and total % gpus == 0:
            values = {"node": best.name, "most": str(best.allocatable), "gpus": str(gpus), "nodes": str(pods)}
            return Facts(detail, values, id="k8s-nodes-too-small")
    alike = sum(count >= most for count in usable)
    flags = f"--gpus {most}" + (f" --nodes {alike}" if alike > 1 else "")
    values = {"total": str(sum(usable)), "gpus": str(most), "flags": flags}
    return Facts(detail, values, id="k8s-cluster-too-small") if most else Facts(detail)


def _resources(message: str, around: Surroundings) -> Facts:
    """Find whose request exceeds cpu or memory. One without a limit is ours (pod.py, _resources)."""
    names = sorted(set(re.findall(r"Insufficient ([\w./-]+?)(?=[,.\s]|$)", message)))
    resources = around.container.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    if names and all(one in ("cpu", "memory") and one in requests and one not in limits for one in names):
        flags = []  # that request half, of such as ``8`` CPUs or ``8Gi``
        for one in names:
            count = float(requests[one].removesuffix("Gi"))
            flags.append(f"--cpus {count / 2:g}" if one == "cpu" else f"--memory {count * 512:g}MB")
        detail = " and ".join(f"{one} {requests[one]}" for one in names)
        values = {"resource": ", ".join(names), "asked": detail, "flags": " ".join(flags)}
        return Facts(detail, values, id="k8s-own-request")
    return Facts(values={"resource": ", ".join(names)})


def _taint(message: str, around: Surroundings) -> Facts:
    """Name the taints of nodes that have what the pod requests; the scheduler's sentence may lack them or effects."""
    tolerations = around.item.get("spec", {}).get("tolerations") or ()
    fitting = [node for node in around.nodes or () if around.selector.items() <= node.labels.items()]
    having = [node for node in fitting if node.allocatable >= around.wanted_gpus] or fitting
    found = [
        taint for node in having for taint in node.taints if not any(_tolerates(each, taint) for each in tolerations)
    ]
    written = {f"{one['key']}{'=' * bool(one.get('value'))}{one.get('value') or ''}:{one['effect']}" for one in found}
    if not written:
        parts = [taint.partition(":") for taint in re.findall(r"taint[s]? \{([^}]*)\}", message)]
        written = {"=".join(filter(None, (key.strip(), value.strip()))) for key, _, value in parts}
    if not written:
        return Facts("no permission to list nodes" if around.nodes is None else "")
    fix = f"in seatrial.toml: [kubernetes] tolerations = {json.dumps(sorted(written))}"
    of_gpus = all(taint.startswith("nvidia.com/gpu") for taint in written)
    return Facts(", ".join(sorted(written)), fix=fix, id="k8s-gpu-taint" if of_gpus else "k8s-taint")


def _tolerates(toleration: Object, taint: Object) -> bool:
    """Match toleration and taint. Source: kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration."""
    exists = toleration.get("operator") == "Exists"
    return (
        toleration.get("effect") in (None, "", taint["effect"])
        and (toleration.get("key") == taint["key"] or (exists and not toleration.get("key")))
        and (exists or (toleration.get("value") or "") == (taint.get("value") or ""))
    )


def _selector(message: str, around: Surroundings) -> Facts:
    wanted = ", ".join(f"{key}={value}" for key, value in around.selector.items())
    have = ""
    if around.nodes is not None and wanted:
        key = next(iter(around.selector))
        values = sorted({node.labels[key] for node in around.nodes if key in node.labels})
        have = f"; {key} is {', '.join(values)}" if values else f"; no node has the label {key}"
    return Facts((wanted or message) + have)


#: Entry of the catalogue → the facts that it needs.
_FACTS: dict[str, Callable[[str, Surroundings], Facts]] = {
    "k8s-insufficient-gpus": _gpus,
    "k8s-insufficient-resources": _resources,
    "k8s-gpu-taint": _taint,
    "k8s-taint": _taint,
    "k8s-node-selector": _selector,
    **dict.fromkeys(("k8s-claims", "k8s-config-missing", "k8s-evicted"), lambda message, around: Facts(message)),
}

#: Kinds that make pods, or hold them back, as Kueue's Workload does.
KINDS = (*(row.api_kind for row in WORKLOADS.values()), "Workload")
#: Reasons of normal events by which no pod is made for now; any other that matters is a warning. Sources: kubernetes
#: pkg/controller/job; kubeflow/training-operator pkg/util/status.go; kubernetes-sigs/kueue pkg/scheduler;
#: kubernetes-sigs/jobset pkg/constants.
_HELD = ("Suspended", *(f"{kind}Suspended" for kind in KINDS), "SuspendedJobs", "Pending", "Inadmissible")

_TABLES = own_table(Path(__file__).with_name("events.toml"))
STEPS, _ABOUT_THE_IMAGE = _TABLES["steps"], _TABLES["about-the-image"]["ids"].split()
_EXITED = re.compile(r"exited with code (\d{1,3})$")


def is_of_run(involved: Object, name: str) -> bool:
    """Return whether an event's involvedObject is of the run whose workload has this name, and no pod."""
    object_name = str(involved.get("name", ""))
    return involved.get("kind") in KINDS and f"-{name}-" in f"-{object_name}-"


def explain_workload(event: Object) -> Finding | None:
    """Return the finding of an event of a workload; None if it blocks nothing."""
    if (match := _match(event)) is None:
        return None
    text = _text(event)
    detail = text.rpartition(" is forbidden: ")[2] if " is forbidden: " in text else event.get("message") or ""
    foreign = [name for name in re.findall(r'containers? "([^"]+)"', text) if name not in OURS]
    cause = fix = None
    if match.known.id == "k8s-pod-security" and foreign:
        cause = f"An operator or webhook adds the container {foreign[0]}, which lacks what the namespace requires"
        fix = "seatrial run … --kind job   # or ask for a namespace that admits the operator's pods"
    finding = match.known.finding([text[:_LONGEST]], values=match.values, cause=cause, fix=fix)
    if detail and match.known.id != "k8s-suspended":
        finding.message += f": {detail[:_LONGEST]}"
    return finding


def waiting_for(pods: Sequence[Pod], nodes: int, workloads: Sequence[Object], events: Sequence[Object]) -> str | None:
    """Return in a word or two why a run waits, or None; ``events``: of its workloads, the oldest first."""
    latest = newest(pods, nodes)
    if any(pod.unreachable and not pod.ended for pod in latest.values()):
        return "a lost node"
    if any(pod.started and not pod.ended for pod in latest.values()):
        return None
    for pod in latest.values():
        if pod.unschedulable and (match := first_in(f"FailedScheduling: {pod.unschedulable}", ("kubernetes",))):
            return _word(match)
    if len(latest) == nodes and not all(pod.ended for pod in latest.values()):
        return None
    specs = [workload.get("spec") or {} for workload in workloads]
    suspended = any(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend") for spec in specs)
    matches = filter(None, map(_match, events))
    words = [_word(each) for each in matches if (each.known.id in ("k8s-suspended", "k8s-queue")) == suspended]
    return words[-1] if words else "suspended" if suspended else None


def reported_exit_code(events: Sequence[Object]) -> int | None:
    """Return an operator's exit code of deleted pods: the last that is not 0, else 0; None if it reported none.

    Source: kubeflow/training-operator v1.9.0 pkg/controller.v1/common/pod.go, ExitedWithCode.
    """
    ends = [_EXITED.search(event.get("message") or "") for event in events if event.get("reason") == "ExitedWithCode"]
    codes = [int(match[1]) for match in ends if match is not None]
    return next((code for code in reversed(codes) if code), 0 if codes else None)


def _match(event: Object) -> Match | None:
    if event.get("type") != "Warning" and event.get("reason") not in _HELD:
        return None
    return first_in(_text(event), ("kubernetes",))


def _text(event: Object) -> str:
    return " ".join(f"{event.get('reason') or ''}: {event.get('message') or ''}".split())


def _word(match: Match) -> str:
    return str(_TABLES["waits-for"].get(match.known.id, match.known.id.replace("k8s-", "").replace("-", " ")))
