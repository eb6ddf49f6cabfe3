"""What a Kubernetes cluster says of its GPUs, read once through kr8s (extra ``k8s``), as plain objects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: For each question; a cluster that is well answers in 0.1 s.
ANSWER_S = 3.0

#: kubelet and the scheduler name GPUs, and MIG slices under the strategy "mixed", under this prefix.
RESOURCE = "nvidia.com/"


class ClusterError(Exception):
    """The cluster could not be asked; the text is one sentence.

    Attributes:
        installable: the reason is that kr8s is not installed.
    """

    def __init__(self, message: str, *, installable: bool = False) -> None:
        super().__init__(message)
        self.installable = installable


@dataclass(frozen=True)
class Cluster:
    """Objects as the API gives them; only those that say something about GPUs are looked at."""

    server: str
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    runtime_classes: list[dict[str, Any]] = field(default_factory=list)

    def gpus(self, kind: str) -> dict[str, int]:
        """Node → GPUs; ``kind`` is ``capacity`` or ``allocatable``. Nodes without the resource are left out."""
        found = {}
        for node in self.nodes:
            resources = (node.get("status") or {}).get(kind) or {}
            counts = [int(value) for name, value in resources.items() if name.startswith(RESOURCE)]
            if counts:
                found[str(node["metadata"]["name"])] = sum(counts)
        return found

    def requested(self) -> int:
        """GPUs of pods that have a node and have not ended."""
        total = 0
        for pod in self.pods:
            phase = (pod.get("status") or {}).get("phase")
            if (pod.get("spec") or {}).get("nodeName") and phase in ("Pending", "Running"):
                total += pod_gpus(pod)
        return total


def pod_gpus(pod: Mapping[str, Any]) -> int:
    """GPUs that a pod's containers ask for together."""
    limits = [
        (one.get("resources") or {}).get("limits") or {} for one in (pod.get("spec") or {}).get("containers") or []
    ]
    return sum(int(value) for limit in limits for name, value in limit.items() if name.startswith(RESOURCE))


def kubeconfig(environ: Mapping[str, str], root: str = "") -> str | None:
    """The kubeconfig's path, None when there is none."""
    named = [path for path in environ.get("KUBECONFIG", "").split(":") if path]
    usual = f"{environ.get('HOME', '')}/.kube/config"
    return next((path for path in [*named, usual] if Path(root + path).is_file()), None)


def read(path: str) -> Cluster:
    """Ask the cluster. Raises ClusterError."""
    try:
        import kr8s  # lazily: 0.4 s, and an extra
    except ImportError as error:
        raise ClusterError("kr8s is not installed", installable=True) from error
    try:
        return _read(kr8s, path)
    except ClusterError:
        raise
    except Exception as error:  # kr8s lets errors of httpx, YAML, TLS and its own through
        raise ClusterError(
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        ) from error


def _read(kr8s: Any, path: str) -> Cluster:
    os.environ.pop("KR8S_TIMEOUT", None)
    api = kr8s.api(kubeconfig=path)
    api.timeout = ANSWER_S
    nodes = [item.raw for item in api.get("nodes")]
    everywhere = kr8s.ALL
    return Cluster(
        server=str(api.auth.server),
        nodes=[_plain(one) for one in nodes],
        pods=[_plain(item.raw) for item in api.get("pods", namespace=everywhere)],
        events=[_plain(item.raw) for item in api.get("events", namespace=everywhere)],
        runtime_classes=_optional(api, "runtimeclasses.node.k8s.io"),
    )


def _optional(api: Any, kind: str) -> list[dict[str, Any]]:
    """Objects of a kind that this user may not be allowed to list, or that the cluster does not know."""
    try:
        return [_plain(item.raw) for item in api.get(kind)]
    except Exception:  # noqa: BLE001  as in read
        return []


def _plain(raw: Any) -> dict[str, Any]:
    return dict(raw.to_dict() if hasattr(raw, "to_dict") else raw)
