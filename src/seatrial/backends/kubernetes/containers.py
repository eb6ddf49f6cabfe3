"""Which container of a pod is the run's, and what the others do: init containers, and sidecars of the cluster."""

from __future__ import annotations

from typing import Any

#: Names that our manifests and the operators give the container of a run: job, pytorchjob, trainjob. Any other in a pod
#: is an operator's or an admission webhook's.
OURS = ("train", "pytorch", "node")

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
    """Whether the kubelet does not start a container that ended so again."""
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
