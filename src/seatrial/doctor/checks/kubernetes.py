"""Layer 10, Kubernetes, when there is a kubeconfig: do nodes offer GPUs, are any free, what holds pods up?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seatrial.doctor.check import Check, Verdict, found, ok, skipped, unknown
from seatrial.doctor.facts import cluster
from seatrial.doctor.facts.cluster import Cluster, ClusterError
from seatrial.doctor.facts.machine import Machine

PLUGIN = "nvidia-device-plugin"
PLUGIN_MANIFEST = (
    "https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/main/deployments/static/nvidia-device-plugin.yml"
)


def _reachable(machine: Machine) -> Verdict:
    path = cluster.kubeconfig(machine.host, machine.root)
    if path is None:
        return skipped("no kubeconfig")
    seen = machine.cluster
    if isinstance(seen, ClusterError):
        if seen.installable:
            return unknown(
                f"{path} exists, but kr8s is not installed: pip install 'seatrial[k8s]' to check the cluster"
            )
        return found("k8s-unreachable", [f"kubeconfig: {path}", str(seen)], severity="warning")
    assert seen is not None
    return ok(f"{seen.server} responds: {len(seen.nodes)} node{'s' * (len(seen.nodes) != 1)}")


def _cluster(machine: Machine) -> Cluster | None:
    return machine.cluster if isinstance(machine.cluster, Cluster) else None


def _nodes(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    if seen is None:
        return skipped("no cluster that responds")
    gpus = seen.gpus("allocatable")
    if sum(gpus.values()):
        return ok(f"{sum(gpus.values())} GPUs on {', '.join(gpus)}")
    plugins = list(_plugin_pods(seen))
    names = ", ".join(str(node["metadata"]["name"]) for node in seen.nodes)
    if plugins:
        return found("k8s-plugin-sees-no-gpu", [*plugins, f"nodes: {names}; none has nvidia.com/gpu"])
    fix = f"kubectl apply -f {PLUGIN_MANIFEST}"
    return found("k8s-no-gpu-resource", [f"nodes: {names}; none has nvidia.com/gpu", f"no pod named {PLUGIN}"], fix=fix)


def _plugin_pods(seen: Cluster) -> Iterator[str]:
    for pod in seen.pods:
        name = str(pod["metadata"]["name"])
        if PLUGIN in name:
            yield f"pod {name}: {(pod.get('status') or {}).get('phase')}"


def _healthy(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    if seen is None:
        return skipped("no cluster that responds")
    usable = seen.gpus("allocatable")
    sick = [
        f"{node}: {count} GPUs, {usable.get(node, 0)} healthy"
        for node, count in seen.gpus("capacity").items()
        if count > usable.get(node, 0)
    ]
    return found("k8s-gpu-unhealthy", sick) if sick else ok("every GPU on the nodes is healthy")


def _free(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    if seen is None:
        return skipped("no cluster that responds")
    total, taken = sum(seen.gpus("allocatable").values()), seen.requested()
    waiting = [
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} asks for {cluster.pod_gpus(pod)}"
        for pod in seen.pods
        if cluster.pod_gpus(pod)
        and not (pod.get("spec") or {}).get("nodeName")
        and (pod.get("status") or {}).get("phase") == "Pending"
    ]
    if waiting:
        return found("k8s-insufficient-gpus", [*waiting[:5], f"{total} allocatable, {taken} taken"])
    if not total:
        return skipped("no node has GPUs")
    return ok(f"{total - taken} of {total} GPUs are free")


def _runtime_class(machine: Machine) -> Verdict:
    """A RuntimeClass is a name; whether containerd has the runtime shows when a pod's sandbox is made."""
    seen = _cluster(machine)
    if seen is None:
        return skipped("no cluster that responds")
    failed = [message for message in _messages(seen) if "no runtime for" in message]
    if failed:
        return found("k8s-runtime-missing", failed[:3])
    handlers = [str(one.get("handler")) for one in seen.runtime_classes]
    return ok(
        f"RuntimeClasses: {', '.join(handlers)}"
        if handlers
        else "no RuntimeClass; nvidia must be containerd's default runtime"
    )


def _images(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    if seen is None:
        return skipped("no cluster that responds")
    stuck = []
    for pod in seen.pods:
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        for status in statuses:
            waiting: dict[str, Any] = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull"):
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                stuck.append(f"{name}: {status.get('image')}: {waiting['reason']}")
    return found("k8s-image-pull", stuck[:5], severity="warning") if stuck else ok("no pod is waiting for its image")


def _messages(seen: Cluster) -> Iterator[str]:
    for event in seen.events:
        yield str(event.get("message") or "")


_NEEDS = ("kubernetes.reachable",)

KUBERNETES = (
    Check("kubernetes.reachable", "The cluster responds", ("k8s-unreachable",), _reachable, timeout_s=8),
    Check(
        "kubernetes.nodes", "Nodes offer GPUs", ("k8s-plugin-sees-no-gpu", "k8s-no-gpu-resource"), _nodes, needs=_NEEDS
    ),
    Check("kubernetes.healthy", "No node has an unhealthy GPU", ("k8s-gpu-unhealthy",), _healthy, needs=_NEEDS),
    Check("kubernetes.free", "No pod is waiting for a GPU", ("k8s-insufficient-gpus",), _free, needs=_NEEDS),
    Check(
        "kubernetes.runtime-class",
        "containerd has the named runtime",
        ("k8s-runtime-missing",),
        _runtime_class,
        needs=_NEEDS,
    ),
    Check("kubernetes.images", "No pod is waiting for its image", ("k8s-image-pull",), _images, needs=_NEEDS),
)
