"""Explain why pods do not run: events of the scheduler, kubelet and controllers, with the facts they omit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seatrial.backends.kubernetes.pods import OURS, Pod, newest, own_container
from seatrial.backends.kubernetes.survey import Node, read_node
from seatrial.errors import SeatrialError
from seatrial.events import Event, HostPod, Note
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding, in_one_line
from seatrial.findings.known import mid_sentence
from seatrial.findings.match import Match, first_in
from seatrial.job.plan import EXIT_POD_STOPPED

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster


@dataclass(frozen=True)
class Surroundings:
    """Holds the facts around a pod.

    Attributes:
        item: the pod as the API has it.
        nodes: None when they may not be listed. holders: (namespace/pod, GPUs) of pods that hold some, None likewise.
        pods: of the run, each of which asks for the same.
    """

    item: dict[str, Any]
    gpu_resource: str
    nodes: tuple[Node, ...] | None = None
    holders: tuple[tuple[str, int], ...] | None = None
    pods: int = 1

    @property
    def wanted_gpus(self) -> int:
        limits = own_container(self.item.get("spec", {})).get("resources", {}).get("limits", {})
        return int(limits.get(self.gpu_resource, 0))


def explain(pod: Pod, reason: str, message: str, around: Surroundings) -> Finding | None:
    """Return the finding that explains why this pod does not run; None if nothing is wrong.

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
    """Holds facts of a failure that the catalogue does not have.

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
    """Insufficient cpu or memory: whose request it is. One without a limit is ours (pod.py, _resources)."""
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


def _message(message: str, around: Surroundings) -> Facts:
    return Facts(message)


#: Entry of the catalogue → what is looked up for it.
_FACTS: dict[str, Callable[[str, Surroundings], Facts]] = {
    "k8s-insufficient-gpus": _gpus,
    "k8s-claims": _message,
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


#: Kinds that make pods, or hold them back. Source: batch/v1, kubeflow.org, jobset.x-k8s.io, kueue.x-k8s.io.
KINDS = ("Job", "PyTorchJob", "TrainJob", "JobSet", "Workload")

#: Normal events that say that no pod is made for now; any other that matters is a warning. Sources: kubernetes
#: pkg/controller/job; kubeflow/training-operator pkg/util/status.go; kubernetes-sigs/kueue pkg/scheduler;
#: kubernetes-sigs/jobset pkg/constants.
_HELD = (
    "Suspended",
    "JobSuspended",
    "PyTorchJobSuspended",
    "TrainJobSuspended",
    "SuspendedJobs",
    "Pending",
    "Inadmissible",
)

#: Entry of the catalogue → what `runs ls` calls it.
_WAITS_FOR = {
    "k8s-quota": "quota",
    "k8s-limits-required": "limits",
    "k8s-limit-range": "limit range",
    "k8s-pod-security": "Pod Security",
    "k8s-service-account": "service account",
    "k8s-queue": "queue",
    "k8s-suspended": "suspended",
    "k8s-admission": "admission",
    "k8s-pods-refused": "pods are refused",
    "k8s-insufficient-gpus": "GPUs",
    "k8s-insufficient-resources": "capacity",
    "k8s-claims": "GPUs",
    "k8s-device-class": "device class",
    "k8s-gpu-taint": "untainted node",
    "k8s-taint": "untainted node",
    "k8s-node-selector": "node selector",
    "k8s-claim-missing": "volume",
    "k8s-volume": "volume",
    "k8s-runtime-class": "RuntimeClass",
}
_LONGEST = 300
_EXITED = re.compile(r"exited with code (\d{1,3})$")


def is_of_run(involved: Mapping[str, Any], name: str) -> bool:
    """Return whether an event is about an object of the run other than its pods.

    Args:
        involved: the event's involvedObject. name: of the run's workload.
    """
    told = str(involved.get("name", ""))
    return involved.get("kind") in KINDS and (told == name or f"-{told}-".find(f"-{name}-") >= 0)


def explain_workload(event: Mapping[str, Any]) -> Finding | None:
    """The finding of an event of a workload, or None for one that holds nothing up."""
    match = _match(event)
    if match is None:
        return None
    said = _said(event)
    detail = said.rpartition(" is forbidden: ")[2] if " is forbidden: " in said else event.get("message") or ""
    foreign = [name for name in re.findall(r'containers? "([^"]+)"', said) if name not in OURS]
    cause = fix = None
    if match.known.id == "k8s-pod-security" and foreign:
        cause = f"An operator or webhook adds the container {foreign[0]}, which lacks what the namespace requires"
        fix = "seatrial run … --kind job   # or ask for a namespace that admits the operator's pods"
    finding = match.known.finding([said[:_LONGEST]], values=match.values, cause=cause, fix=fix)
    if detail and match.known.id != "k8s-suspended":
        finding.message += f": {detail[:_LONGEST]}"
    return finding


def waiting_for(
    pods: Sequence[Pod], nodes: int, workloads: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return the reason why a run waits, in a word or two; None if it does not, or the reason is unknown.

    Args:
        events: of its workloads, the oldest first.
    """
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
    matches = [match for match in map(_match, events) if match is not None]
    held = any(_is_suspended(workload) for workload in workloads)
    told = [match for match in matches if (match.known.id in ("k8s-suspended", "k8s-queue")) == held]
    return _word(told[-1]) if told else "suspended" if held else None


def told_exit_code(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Return an operator's exit code of deleted pods: the last that is not 0, else 0; None if it reported none.

    Source: kubeflow/training-operator v1.9.0 pkg/controller.v1/common/pod.go, ExitedWithCode.
    """
    said = [_EXITED.search(event.get("message") or "") for event in events if event.get("reason") == "ExitedWithCode"]
    codes = [int(match[1]) for match in said if match is not None]
    return next((code for code in reversed(codes) if code), 0 if codes else None)


def _match(event: Mapping[str, Any]) -> Match | None:
    if event.get("type") != "Warning" and event.get("reason") not in _HELD:
        return None
    return first_in(_said(event), ("kubernetes",))


def _said(event: Mapping[str, Any]) -> str:
    return " ".join(f"{event.get('reason') or ''}: {event.get('message') or ''}".split())


def _is_suspended(workload: Mapping[str, Any]) -> bool:
    spec = workload.get("spec") or {}
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _word(match: Match) -> str:
    return _WAITS_FOR.get(match.known.id, match.known.id.replace("k8s-", "").replace("-", " "))


#: Events that tell how far a pod is. Source: kubernetes pkg/kubelet/events/event.go.
_STEPS = {
    "Scheduled": "is scheduled",
    "Pulling": "is pulling its image",
    "Pulled": "pulled its image",
    "Preempted": "was preempted",
}


#: Commands of the catalogue that look into a namespace; nodes and the like have none.
_LOOKS = re.compile(r"kubectl (?=(?:get|describe|logs) (?!node|namespaces|runtimeclass|validating))")


def in_namespace(fix: str | None, namespace: str) -> str | None:
    """The command for a run's own namespace: ``default`` is where kubectl looks by itself, as a rule."""
    if fix is None or namespace == "default" or "--all-namespaces" in fix:
        return fix
    return _LOOKS.sub(f"kubectl -n {namespace} ", fix)


def image_digest(image_id: str) -> str:
    """``sha256:…`` of an imageID: ``docker-pullable://r/i@sha256:…``, ``docker://sha256:…``, or the bare digest.

    Of a pulled image the registry's digest, else the node's own image ID.
    """
    return image_id.rpartition("@")[2].rpartition("/")[2]


class Progress:
    """Says what happens to pods.

    Args:
        say: a line for people.
        record: writes a host event of the run.
        namespace: of the run.
    """

    def __init__(
        self, cluster: Cluster, say: Callable[[str], None], record: Callable[[Event], None], namespace: str = "default"
    ) -> None:
        self._cluster, self._say, self._record, self._namespace = cluster, say, record, namespace
        self._said: set[str] = set()
        self._items: dict[str, dict[str, Any]] = {}

    async def pod(self, pod: Pod, item: dict[str, Any]) -> None:
        """A pod is new or has changed."""
        self._items[pod.name] = item
        if pod.waiting and pod.waiting[0] not in ("ContainerCreating", "PodInitializing"):
            await self._trouble(pod, *pod.waiting)
        if pod.started and not pod.ended:
            self._once(f"{pod.name} is running" + (f" on {pod.host}" if pod.host else ""))
        if pod.started and pod.image_id:
            image = image_digest(pod.image_id)
            self._record(HostPod(name=pod.name, node=pod.node, host=pod.host, image=image))
        if pod.unreachable:
            await self._trouble(pod, "NodeNotReady", "Node is not ready")
        if pod.reason in ("OOMKilled", "Evicted", "Preempting"):
            await self._trouble(pod, pod.reason, pod.message or "")
        for condition in item.get("status", {}).get("conditions") or []:
            if condition.get("reason") == "Unschedulable":
                await self._trouble(pod, "FailedScheduling", condition.get("message", ""))
        if pod.deleted and pod.started and not pod.ended:
            self._once(f"{pod.name} is being deleted; its target was asked to end and may save")
        if pod.ended and pod.exit_code == EXIT_POD_STOPPED:
            self._once(f"{pod.name} was asked to end before it had finished: drained, preempted or deleted")
        elif pod.ended and pod.exit_code:
            self._once(f"{pod.name} has ended with exit code {pod.exit_code}")
        if pod.outlived_by:
            self._once(f"{pod.name} has ended, but its {', '.join(pod.outlived_by)} runs on until the run is removed")

    async def event(self, pod: Pod, item: dict[str, Any]) -> None:
        """The cluster said something about a pod."""
        reason, message = item.get("reason", ""), item.get("message", "")
        if reason in _STEPS and not pod.started:
            self._once(f"{pod.name} {_STEPS[reason]}")
        elif item.get("type") == "Warning" and not pod.started:
            await self._trouble(pod, reason, message)

    def workload_event(self, item: dict[str, Any]) -> None:
        """The cluster said something about what makes the pods; each trouble is told once, however often it tries."""
        finding = explain_workload(item)
        if finding is None or f"workload {finding.id}" in self._said:
            return
        self._said.add(f"workload {finding.id}")
        self._tell(finding)

    def trouble(self, error: SeatrialError) -> None:
        """The cluster cannot be watched."""
        self._once(f"{error.message}; trying again")

    async def _trouble(self, pod: Pod, reason: str, message: str) -> None:
        key = f"{pod.name} {reason} {message}"
        if key in self._said:
            return
        self._said.add(key)
        finding = explain(pod, reason, message, await self._surroundings(pod, message))
        if finding is None or f"{pod.node} {finding.id} {finding.message}" in self._said:
            return
        self._said.add(f"{pod.node} {finding.id} {finding.message}")
        self._tell(finding)

    async def _surroundings(self, pod: Pod, message: str) -> Surroundings:
        """Nodes and holders, asked only where the answer needs them; what may not be read is left out."""
        item = self._items.get(pod.name, {})
        limits = own_container(item.get("spec", {})).get("resources", {}).get("limits", {})
        resource = next((key for key in limits if "/" in key), "nvidia.com/gpu")
        nodes = holders = None
        if "Insufficient" in message or "node(s)" in message:
            try:
                listing = await self._cluster.request("GET", "/api/v1/nodes")
                nodes = tuple(read_node(node, resource) for node in listing["items"])
                holders = gpu_holders((await self._cluster.request("GET", "/api/v1/pods"))["items"], resource)
            except SeatrialError:
                pass  # a namespaced Role cannot read them: the explanation says so
        return Surroundings(item, resource, nodes, holders, max(1, len(self._items)))

    def _tell(self, finding: Finding) -> None:
        finding.fix = in_namespace(finding.fix, self._namespace)
        self._say(in_one_line(finding.message, finding.cause, finding.fix))
        self._record(finding.event())

    def _once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)
            self._record(Note(message=line))
