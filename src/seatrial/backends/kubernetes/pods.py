"""Pods and workloads of a run as the API reports them, read into State. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.backends.base import State
from seatrial.backends.kubernetes.manifests import JOB_CONTAINER, PYTORCH_CONTAINER, TRAINER_CONTAINER

#: Names that our manifests and the operators give the container of a run: job, pytorchjob, trainjob. Any other in a pod
#: is an operator's or an admission webhook's.
OURS = (JOB_CONTAINER, PYTORCH_CONTAINER, TRAINER_CONTAINER)

Object = dict[str, Any]


def own_container(spec: Object) -> Object:
    """The run's container in a pod's spec; the first one where none has a name of ours. ``{}`` without any."""
    return _own(spec.get("containers") or [])


def own_status(status: Object) -> Object:
    """The state of the run's container; ``{}`` before the kubelet has looked."""
    return _own(status.get("containerStatuses") or [])


def _own(entries: list[Object]) -> Object:
    return next((one for one in entries if one.get("name") in OURS), entries[0] if entries else {})


def holding_up(status: Object) -> Object | None:
    """The init container or native sidecar that the run's container waits for and that is in trouble, or None.

    They start one after the other, so one that waits for more than its turn holds up all behind it.
    """
    for one in status.get("initContainerStatuses") or []:
        reason = one.get("state", {}).get("waiting", {}).get("reason")
        if reason and reason not in ("PodInitializing", "ContainerCreating"):
            return dict(one)
    return None


def failed_init(status: Object) -> str | None:
    """``init container NAME ended with exit code 1`` of the one that failed, or None."""
    for one in status.get("initContainerStatuses") or []:
        code = one.get("state", {}).get("terminated", {}).get("exitCode")
        if code:
            return f"init container {one.get('name')} ended with exit code {code}"
    return None


def is_final(spec: Object, code: int | None) -> bool:
    """Return whether the kubelet leaves a container that ended so stopped."""
    policy = spec.get("restartPolicy", "Always")
    return policy == "Never" or (policy == "OnFailure" and code == 0)


def others_running(status: Object) -> tuple[str, ...]:
    """Names of containers beside the run's that still run: a pod does not end before them."""
    own = own_status(status)
    return tuple(
        str(one.get("name"))
        for one in status.get("containerStatuses") or []
        if one is not own and "running" in one.get("state", {})
    )


#: Labels by which controllers number their pods. Sources: kubernetes.io/docs/reference/labels-annotations-taints
#: (job-completion-index); kubeflow/training-operator pkg/apis/kubeflow.org/v1/common_types.go.
_INDEX = "batch.kubernetes.io/job-completion-index"
_REPLICA_TYPE = "training.kubeflow.org/replica-type"
_REPLICA_INDEX = "training.kubeflow.org/replica-index"

#: Reasons of a container that ended without having run. Source: kubernetes pkg/kubelet/kuberuntime.
NEVER_RAN = ("StartError", "ContainerCannotRun")

#: Reasons a container waits for that no patience fixes. Source: kubernetes pkg/kubelet/images/types.go.
HOPELESS = ("ErrImageNeverPull", "InvalidImageName")


@dataclass(frozen=True)
class Pod:
    """One pod of a run.

    Attributes:
        node: which node of the run it is, from 0.
        phase: the API's. container: the run's own; all below is about it, whatever else a cluster puts into the pod.
        waiting: (reason, message) of what has not started: the container, or an init container that it waits for;
            waiting_image: its image; waiting_on: the init container's name, None for the container itself.
        exit_code, reason: of a container that has ended, e.g. 137 and ``OOMKilled``.
        last_words: of the kubelet, why its container could not be started. A termination message of one that ran is
            the target's to write, and is left alone.
        restarts: times its container was started again in place.
        outlived_by: sidecars that still run though the container has ended for good: the pod itself goes on.
        unschedulable: why no node takes it, in the scheduler's words.
        unreachable: its node does not answer any more, so nobody knows whether it still runs.
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


def read_pod(item: dict[str, Any]) -> Pod:
    """A pod of the API."""
    meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    container = own_status(status)
    state = container.get("state", {})
    ended = state.get("terminated") or {}
    code = ended.get("exitCode")
    held = holding_up(status)
    first = held or container
    waiting = first.get("state", {}).get("waiting")
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
        message=status.get("message") or failed_init(status),
        container=container.get("name") or own_container(spec).get("name"),
        waiting_image=first.get("image") if waiting else None,
        waiting_on=held.get("name") if held else None,
        outlived_by=others_running(status) if ended and is_final(spec, code) else (),
        last_words=ended.get("message") if ended.get("reason") in NEVER_RAN else None,
        unschedulable=next(
            (
                condition.get("message") or "no node fits"
                for condition in status.get("conditions") or []
                if condition.get("reason") == "Unschedulable"
            ),
            None,
        ),
        unreachable=_is_unreachable(status),
    )


def _is_unreachable(status: Mapping[str, Any]) -> bool:
    """A controller says that the pod is not ready, and the kubelet's last word is that its containers are.

    Without probes and readiness gates, which our pods do not have, a kubelet never says so. Source: kubernetes
    pkg/controller/util/node, MarkPodsNotReady; phase Unknown and NodeLost are of versions before.
    """
    if status.get("phase") == "Unknown" or status.get("reason") == "NodeLost":
        return True
    said = {condition.get("type"): condition.get("status") for condition in status.get("conditions") or []}
    return status.get("phase") == "Running" and said.get("Ready") == "False" and said.get("ContainersReady") == "True"


def _node(meta: dict[str, Any]) -> int:
    """Return the node of the run that a pod is: by its index in a Job, or in the workers of a PyTorchJob."""
    labels: dict[str, str] = meta.get("labels", {})
    index = labels.get(_INDEX, "") or meta.get("annotations", {}).get(_INDEX, "")
    if index.isdigit():
        return int(index)
    replica = labels.get(_REPLICA_INDEX, "")
    return int(replica) + (labels.get(_REPLICA_TYPE) == "worker") if replica.isdigit() else 0


def newest(pods: Sequence[Pod], nodes: int) -> dict[int, Pod]:
    """Node → its newest pod: a pod that comes again replaces the one before, unless that has succeeded.

    A pod that is deleted may still finish. Its controller, which has made another by then, takes it and ends the other.
    """
    found: dict[int, Pod] = {}
    for pod in sorted(pods, key=lambda pod: (pod.phase == "Succeeded", pod.created, pod.uid)):
        if pod.node < nodes:
            found[pod.node] = pod
    return found


def state_of(pods: Sequence[Pod], nodes: int, workload: str) -> State:
    """The run's state.

    Args:
        workload: ``active``, ``done`` or ``failed`` as its controller says, or ``unknown`` where none acts on it.
    """
    latest = newest(pods, nodes)
    hopeless = next((pod for pod in latest.values() if pod.waiting and pod.waiting[0] in HOPELESS), None)
    if hopeless is not None and hopeless.waiting is not None:
        return State("exited", error=f"{hopeless.name}: {hopeless.waiting[0]}: {hopeless.waiting[1]}")
    ended = len(latest) == nodes and all(pod.ended for pod in latest.values())
    # A controller waits for the sidecar, too, so it says nothing more of pods that all have ended but for one.
    outlived = any(pod.outlived_by for pod in latest.values()) and all(
        pod.outlived_by or pod.phase == "Succeeded" for pod in latest.values()
    )
    if (workload == "active" and not (ended and outlived)) or (workload == "unknown" and not ended):
        return State("running" if any(pod.started for pod in latest.values()) else "created")
    failed = next((pod for pod in latest.values() if pod.exit_code), None)
    return State(
        "exited",
        exit_code=failed.exit_code if failed else 0 if workload == "done" or ended else None,
        oom_killed=any(pod.reason == "OOMKilled" for pod in pods),
        error=next((pod.message or pod.last_words for pod in latest.values() if pod.message or pod.last_words), None),
    )


def workload_state(workloads: Sequence[dict[str, Any]]) -> str:
    """Return ``active``, ``done`` or ``failed`` of the run's workload; ``unknown`` until its controller has acted."""
    if not workloads:
        return "failed"
    status = workloads[0].get("status") or {}
    if not status:
        return "unknown"
    end = end_of(status)
    return "active" if end is None else "done" if end.well else "failed"


@dataclass(frozen=True)
class End:
    """Describes the end that a workload reports.

    Attributes:
        type: of its condition. well: its pods succeeded. message: in its controller's words.
    """

    type: str
    well: bool
    message: str = ""


def end_of(status: Mapping[str, Any]) -> End | None:
    """The end of a workload by its own conditions; None while it goes on, waits, is suspended, or nobody acts on it.

    Source: conditions of batch/v1 and trainer (Complete, Failed), of kubeflow.org/v1 (Succeeded, Failed) and of
    jobset.x-k8s.io (Completed, Failed).
    """
    for condition in status.get("conditions") or []:
        kind = condition.get("type", "")
        if condition.get("status") == "True" and kind in ("Complete", "Completed", "Succeeded", "Failed"):
            return End(kind, kind != "Failed", condition.get("message") or "")
    return None
