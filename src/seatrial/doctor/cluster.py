"""Facts of a Kubernetes cluster's GPUs, read once (extra ``k8s``), as plain objects."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.backends.kubernetes import client
from seatrial.backends.kubernetes.client import read_kubeconfig
from seatrial.errors import EngineUnavailableError, SeatrialError, printable
from seatrial.system.host import Host

#: For all questions together; a cluster that is well answers each in 0.1 s.
ANSWER_S = 6.0

#: kubelet and the scheduler name GPUs, and MIG slices under the strategy "mixed", under this prefix.
RESOURCE = "nvidia.com/"


class ClusterError(Exception):
    """The cluster could not be read; the text is one sentence.

    Attributes:
        installable: the reason is that kr8s is not installed.
    """

    def __init__(self, message: str, *, installable: bool = False) -> None:
        super().__init__(message)
        self.installable = installable


@dataclass(frozen=True)
class ClusterObjects:
    """Holds the API's objects that concern GPUs."""

    server: str
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    runtime_classes: list[dict[str, Any]] = field(default_factory=list)

    def gpus(self, kind: str) -> dict[str, int]:
        """Return node → GPUs; ``kind`` is ``capacity`` or ``allocatable``. Nodes without the resource are left out."""
        found = {}
        for node in self.nodes:
            resources = (node.get("status") or {}).get(kind) or {}
            counts = [int(value) for name, value in resources.items() if name.startswith(RESOURCE)]
            if counts:
                found[str(node["metadata"]["name"])] = sum(counts)
        return found

    def requested(self) -> int:
        """Count the GPUs of pods that have a node and have not ended."""
        return sum(
            pod_gpus(pod)
            for pod in self.pods
            if (pod.get("spec") or {}).get("nodeName")
            and (pod.get("status") or {}).get("phase") in ("Pending", "Running")
        )


def pod_gpus(pod: Mapping[str, Any]) -> int:
    """Count the GPUs that a pod's containers request together."""
    limits = [
        (one.get("resources") or {}).get("limits") or {} for one in (pod.get("spec") or {}).get("containers") or []
    ]
    return sum(int(value) for limit in limits for name, value in limit.items() if name.startswith(RESOURCE))


def kubeconfig(host: Host, root: str = "") -> str | None:
    """Return the kubeconfig's path; None if there is none."""
    named = [path for path in host.env.get("KUBECONFIG", "").split(":") if path]
    usual = f"{host.env.get('HOME', '')}/.kube/config"
    return next((path for path in [*named, usual] if Path(root + path).is_file()), None)


def read(path: str) -> ClusterObjects:
    """Ask the cluster of a kubeconfig. Raises ClusterError."""
    door = client.Cluster(Host({"KUBECONFIG": path}))
    deadline = time.monotonic() + ANSWER_S
    return ClusterObjects(
        server=_server(path),
        nodes=_items(door, "/api/v1/nodes", deadline),
        pods=_items(door, "/api/v1/pods", deadline),
        events=_items(door, "/api/v1/events", deadline),
        runtime_classes=_items(door, "/apis/node.k8s.io/v1/runtimeclasses", deadline),
    )


def _items(door: client.Cluster, path: str, deadline: float) -> list[dict[str, Any]]:
    answer = door.submit(door.request("GET", path))
    try:
        items: list[dict[str, Any]] = answer.result(max(0.1, deadline - time.monotonic())).get("items") or []
    except TimeoutError as error:
        answer.cancel()
        raise ClusterError(f"no answer to {path} within {ANSWER_S:g} s") from error
    except EngineUnavailableError as error:
        raise ClusterError(error.message, installable="kr8s" in error.message) from error
    except Exception as error:  # any error of signing in: httpx, TLS, a kubeconfig that is not YAML
        line = (str(error).strip() or "no message").splitlines()[0]
        raise ClusterError(line if isinstance(error, SeatrialError) else f"{type(error).__name__}: {line}") from error
    return items


def _server(path: str) -> str:
    """The address in the kubeconfig, for the report."""
    try:
        config = read_kubeconfig(Path(path))
        server = config["clusters"][0]["cluster"]["server"]
        return printable(server) if isinstance(server, str) and server.strip() else path
    except (SeatrialError, LookupError, TypeError):
        return path
