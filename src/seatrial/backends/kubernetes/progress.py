"""A run's progress in words: what each pod waits for, said once, kept as evidence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seatrial.backends.kubernetes.containers import own_container
from seatrial.backends.kubernetes.devices import claimable
from seatrial.backends.kubernetes.explain import Surroundings, explain, gpu_holders
from seatrial.backends.kubernetes.pods import Pod
from seatrial.backends.kubernetes.survey import read_node
from seatrial.backends.kubernetes.workload import explain_workload
from seatrial.errors import SeatrialError
from seatrial.events import Event, HostPod, Note
from seatrial.findings.finding import Finding
from seatrial.findings.labels import in_one_line
from seatrial.job.plan import EXIT_POD_STOPPED

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.client import Cluster

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
        nodes = holders = offers = None
        if "claims" in message:
            offers = (await claimable(self._cluster)).offers
        if "Insufficient" in message or "node(s)" in message:
            try:
                listing = await self._cluster.request("GET", "/api/v1/nodes")
                nodes = tuple(read_node(node, resource) for node in listing["items"])
                holders = gpu_holders((await self._cluster.request("GET", "/api/v1/pods"))["items"], resource)
            except SeatrialError:
                pass  # a namespaced Role cannot read them: the explanation says so
        return Surroundings(item, resource, nodes, holders, max(1, len(self._items)), offers)

    def _tell(self, finding: Finding) -> None:
        finding.fix = in_namespace(finding.fix, self._namespace)
        self._say(in_one_line(finding.message, finding.cause, finding.fix))
        self._record(finding.event())

    def _once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)
            self._record(Note(message=line))
