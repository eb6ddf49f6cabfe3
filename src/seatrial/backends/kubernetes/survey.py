"""Read a cluster's reports: its version, the GPUs of its nodes, and a run's pods and workloads as State."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from seatrial.backends.base import State
from seatrial.backends.kubernetes.client import ApiError, Cluster
from seatrial.backends.kubernetes.manifests import JOB_CONTAINER, PYTORCH_CONTAINER, TRAINER_CONTAINER
from seatrial.backends.kubernetes.pod import DEFAULT_CONTAINER
from seatrial.errors import SeatrialError, fallback
from seatrial.job.plan import EngineAddress

#: First version with stable Indexed Jobs. Source: kubernetes.io/blog, release notes of 1.24.
INDEXED_SINCE = (1, 24)
#: First version that serves resource.k8s.io/v1. Source: kubernetes.io/blog, release notes of 1.34.
CLAIMS_SINCE = (1, 34)
#: podFailurePolicy is on by default from here, and stable since 1.31. With it, a Job replaces a pod when that has ended
#: and not while it is ending (podReplacementPolicy Failed is the only value allowed then), so no two pods of one rank
#: write the same checkpoints. Source: kubernetes.io/docs/concepts/workloads/controllers/job.
DISRUPTIONS_SINCE = (1, 26)
#: Names that our manifests and the operators give the container of a run. Any other in a pod is an operator's or an
#: admission webhook's.
OURS = (JOB_CONTAINER, PYTORCH_CONTAINER, TRAINER_CONTAINER)
#: Labels by which controllers number their pods. Sources: kubernetes.io/docs/reference/labels-annotations-taints
#: (job-completion-index); kubeflow/training-operator pkg/apis/kubeflow.org/v1/common_types.go.
_INDEX = "batch.kubernetes.io/job-completion-index"
_REPLICA_TYPE, _REPLICA_INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
#: Reasons of a container that ended without having run. Source: kubernetes pkg/kubelet/kuberuntime.
NEVER_RAN = ("StartError", "ContainerCannotRun")
#: Reasons a container waits for that no patience fixes. Source: kubernetes pkg/kubelet/images/types.go.
HOPELESS = ("ErrImageNeverPull", "InvalidImageName")

Object = dict[str, Any]


@dataclass(frozen=True)
class Node:
    """A node's GPUs: ``capacity`` as the device plugin reported, ``allocatable`` those that are healthy.

    ``offers``: NVIDIA's resources that it has → the healthy ones; MIG slices of each size are a resource of their own.
    ``taints``: those that keep pods off.
    """

    name: str
    capacity: int
    allocatable: int
    ready: bool
    unschedulable: bool = False
    product: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    offers: dict[str, int] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster at one moment; ``version``: ``(1, 29)``; ``git_version``: as the server prints it.

    ``address``: None if it has not answered. ``nodes``: None if they may not be listed, or do not report what the pods
    request: capacity is not judged then. ``unread``: sentences about what could not be read.
    """

    version: tuple[int, int] = (1, 99)
    git_version: str = "unknown"
    namespace: str = "default"
    context: str | None = None
    address: EngineAddress | None = None
    kueue: bool = False
    nodes: tuple[Node, ...] | None = None
    unread: tuple[str, ...] = ()

    @property
    def indexed(self) -> bool:
        return self.version >= INDEXED_SINCE

    @property
    def disruptions_free(self) -> bool:
        return self.version >= DISRUPTIONS_SINCE


def survey(cluster: Cluster, gpu_resource: str = "nvidia.com/gpu") -> ClusterFacts:
    """Read the cluster's facts. Raises EngineUnavailableError if it does not answer."""
    # Requests are sequential: kr8s signs in again after a 403, and parallel requests then have no address (kr8s 0.20).
    version = cluster.get("/version")
    nodes: tuple[Node, ...] | None = None
    unread: tuple[str, ...] = ()
    try:
        nodes = tuple(read_node(item, gpu_resource) for item in cluster.get("/api/v1/nodes")["items"])
    except ApiError as error:
        unread = (f"no permission to list nodes, so free GPUs are unknown ({error.message})",)
    classes = _read(cluster, "/apis/resource.k8s.io/v1/deviceclasses").get("items") or ()
    claimed = any(one["spec"].get("extendedResourceName") == gpu_resource for one in classes)  # which no node counts
    if claimed and nodes and not any(node.capacity for node in nodes):
        nodes, unread = None, (f"a DeviceClass stands for {gpu_resource}, so free GPUs are unknown",)
    return ClusterFacts(
        version=read_version(version),
        git_version=version["gitVersion"],
        namespace=cluster.namespace,
        context=cluster.context,
        address=cluster.address(),
        kueue=bool(_read(cluster, "/apis/kueue.x-k8s.io").get("versions")),
        nodes=nodes,
        unread=unread,
    )


def read_version(reported: Mapping[str, str]) -> tuple[int, int]:
    """Read the answer of ``/version``: builds without a stamp leave ``major`` and ``minor`` empty."""
    named = re.match(r"v(\d+)\.(\d+)", reported.get("gitVersion", ""))
    return (int(named[1]), int(named[2])) if named else (_number(reported["major"]), _number(reported["minor"]))


def read_node(item: dict[str, Any], gpu_resource: str) -> Node:
    """Read a node of the API."""
    status, spec = item.get("status", {}), item.get("spec", {})
    labels = item["metadata"].get("labels", {})
    allocatable = status.get("allocatable", {})
    offers = {name: _number(count) for name, count in sorted(allocatable.items()) if name.startswith("nvidia.com/")}
    return Node(
        name=item["metadata"]["name"],
        capacity=_number(status.get("capacity", {}).get(gpu_resource, "0")),
        allocatable=_number(allocatable.get(gpu_resource, "0")),
        ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])),
        unschedulable=bool(spec.get("unschedulable")),
        product=labels.get("nvidia.com/gpu.product"),
        labels=labels,
        offers={name: count for name, count in offers.items() if count},
        taints=tuple(taint for taint in spec.get("taints") or () if taint.get("effect") != "PreferNoSchedule"),
    )


@fallback({}, on=SeatrialError)
def _read(cluster: Cluster, path: str) -> Object:
    """Return what discovery and classes are, which everybody may read; {} where the cluster does not serve it."""
    return cluster.get(path)


def _number(text: str) -> int:
    """Read ``"20+"`` as 20: providers add a plus to the minor version."""
    return int("".join(character for character in str(text) if character.isdigit()) or 0)


def own_container(pod: Object, entries: Sequence[Object] | None) -> Object:
    """Find the run's entry among a pod's containers or their statuses; the first where none has a name of ours."""
    found = list(entries or ())
    annotated = (pod.get("metadata", {}).get("annotations") or {}).get(DEFAULT_CONTAINER)
    names = OURS if annotated is None else (annotated,)
    return next((one for one in found if one.get("name") in names), found[0] if found else {})


class Pod(NamedTuple):
    """One pod of a run.

    Attributes:
        node: which node of the run it is, from 0.
        phase: the API's. container: the run's own, which all below is about; a cluster may add others to the pod.
        waiting: (reason, message) of the container that has not started, or of an init container that it waits for;
            waiting_image: its image; waiting_on: the init container's name, None for the container itself.
        exit_code, reason: of a container that has ended, e.g. 137 and ``OOMKilled``.
        last_words: the kubelet's reason why its container could not be started. A termination message of a container
            that ran is the target's to write, and is ignored.
        restarts: times its container was started again in place.
        outlived_by: sidecars that still run though the container has ended for good: the pod itself goes on.
        unschedulable: why no node takes it, in the scheduler's words.
        unreachable: its node does not answer, so nobody knows whether it still runs.
    """

    name: str
    uid: str
    node: int
    phase: str
    created: str
    host: str | None = None
    waiting: tuple[str, str] | None = None
    started: bool = False
    exit_code: int | None = None
    reason: str | None = None
    restarts: int = 0
    deleted: bool = False
    image_id: str | None = None
    message: str | None = None
    container: str | None = None
    waiting_image: str | None = None
    waiting_on: str | None = None
    outlived_by: tuple[str, ...] = ()
    unschedulable: str | None = None
    last_words: str | None = None
    unreachable: bool = False

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed") or bool(self.outlived_by)


def read_pod(item: Object) -> Pod:
    """Read a pod of the API."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    container = own_container(item, status.get("containerStatuses"))
    state = container.get("state", {})
    ended = state.get("terminated") or {}
    code = ended.get("exitCode")
    blocking, failed = _init_containers(status)
    first = blocking or container
    waiting = first.get("state", {}).get("waiting")
    policy = spec.get("restartPolicy", "Always")  # by which the kubelet starts an ended container again, or not
    over = ended and (policy == "Never" or (policy == "OnFailure" and code == 0))
    others = [one for one in status.get("containerStatuses") or () if one is not container] if over else []
    unschedulable = (one for one in status.get("conditions") or [] if one.get("reason") == "Unschedulable")
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        node=_node(meta),
        phase=status.get("phase", "Pending"),
        created=meta["creationTimestamp"],
        host=spec.get("nodeName"),
        waiting=(waiting.get("reason", ""), waiting.get("message", "")) if waiting else None,
        started="running" in state or bool(ended),
        exit_code=code,
        reason=ended.get("reason") or status.get("reason"),
        restarts=container.get("restartCount", 0),
        deleted="deletionTimestamp" in meta,
        image_id=container.get("imageID") or None,
        message=status.get("message") or failed,
        container=container.get("name") or own_container(item, spec.get("containers")).get("name"),
        waiting_image=first.get("image") if waiting else None,
        waiting_on=blocking.get("name") if blocking else None,
        outlived_by=tuple(str(one.get("name")) for one in others if "running" in one.get("state", {})),
        last_words=ended.get("message") if ended.get("reason") in NEVER_RAN else None,
        unschedulable=next((one.get("message") or "no node fits" for one in unschedulable), None),
        unreachable=_is_unreachable(status),
    )


def _init_containers(status: Object) -> tuple[Object | None, str | None]:
    """Return the init container or native sidecar in trouble that the run's waits for, and a failed one's message."""
    blocking = failed = None
    for one in status.get("initContainerStatuses") or []:
        state = one.get("state", {})
        reason = state.get("waiting", {}).get("reason")
        if blocking is None and reason and reason not in ("PodInitializing", "ContainerCreating"):
            blocking = one
        if failed is None and (code := state.get("terminated", {}).get("exitCode")):
            failed = f"init container {one.get('name')} ended with exit code {code}"
    return blocking, failed


def _is_unreachable(status: Object) -> bool:
    """Return whether a controller reports the pod as not ready while the kubelet's last report was that it is.

    Without probes, as ours, a kubelet never reports that. Source: kubernetes pkg/controller/util/node,
    MarkPodsNotReady; phase Unknown and NodeLost are of versions before.
    """
    if status.get("phase") == "Unknown" or status.get("reason") == "NodeLost":
        return True
    found = {condition.get("type"): condition.get("status") for condition in status.get("conditions") or []}
    return status.get("phase") == "Running" and (found.get("Ready"), found.get("ContainersReady")) == ("False", "True")


def _node(meta: Object) -> int:
    """Return which node of the run a pod is: by its index in a Job, or in the workers of a PyTorchJob."""
    labels: dict[str, str] = meta.get("labels", {})
    index = labels.get(_INDEX, "") or meta.get("annotations", {}).get(_INDEX, "")
    if index.isdigit():
        return int(index)
    replica = labels.get(_REPLICA_INDEX, "")
    return int(replica) + (labels.get(_REPLICA_TYPE) == "worker") if replica.isdigit() else 0


def newest(pods: Sequence[Pod], nodes: int) -> dict[int, Pod]:
    """Return node → its newest pod, unless one before has succeeded: a pod that is deleted may still finish."""
    in_order = sorted(pods, key=lambda pod: (pod.phase == "Succeeded", pod.created, pod.uid))
    return {pod.node: pod for pod in in_order if pod.node < nodes}


def state_of(pods: Sequence[Pod], nodes: int, workload: str) -> State:
    """Return the run's state; ``workload`` is the answer of ``workload_state``."""
    latest = newest(pods, nodes)
    for pod in latest.values():
        if pod.waiting and pod.waiting[0] in HOPELESS:
            return State("exited", error=f"{pod.name}: {pod.waiting[0]}: {pod.waiting[1]}")
    ended = len(latest) == nodes and all(pod.ended for pod in latest.values())
    # A controller waits for the sidecar, too, so it reports nothing more of pods that all have ended but for one.
    done = all(pod.outlived_by or pod.phase == "Succeeded" for pod in latest.values())
    outlived = done and any(pod.outlived_by for pod in latest.values())
    if (workload == "active" and not (ended and outlived)) or (workload == "unknown" and not ended):
        return State("running" if any(pod.started for pod in latest.values()) else "created")
    code = next((pod.exit_code for pod in latest.values() if pod.exit_code), None)
    return State(
        "exited",
        exit_code=code or (0 if workload == "done" or ended else None),
        oom_killed=any(pod.reason == "OOMKilled" for pod in pods),
        error=next((pod.message or pod.last_words for pod in latest.values() if pod.message or pod.last_words), None),
    )


def workload_state(workloads: Sequence[Object]) -> tuple[str, str | None]:
    """Return ``active``, ``done`` or ``failed`` for the run's workload, and its controller's message on the end.

    ``unknown`` until the controller has acted; ``active`` while the workload runs, waits or is suspended.

    Source: conditions of batch/v1 and trainer (Complete, Failed), of kubeflow.org/v1 (Succeeded, Failed) and of
    jobset.x-k8s.io (Completed, Failed).
    """
    if not workloads:
        return "failed", None
    status = workloads[0].get("status") or {}
    for condition in status.get("conditions") or []:
        kind = condition.get("type", "")
        if condition.get("status") == "True" and kind in ("Complete", "Completed", "Succeeded", "Failed"):
            return "failed" if kind == "Failed" else "done", condition.get("message")
    return "active" if status else "unknown", None
