"""Layer 10, Kubernetes, where there is a kubeconfig: GPUs that nodes offer, free ones, and pods that wait."""

from __future__ import annotations

from typing import Any

from seatrial.doctor import cluster
from seatrial.doctor.check import Layer, Verdict, found, ok, skipped, unknown
from seatrial.doctor.cluster import ClusterError, ClusterObjects
from seatrial.doctor.machine import Machine

PLUGIN = "nvidia-device-plugin"
PLUGIN_MANIFEST = (
    "https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/main/deployments/static/nvidia-device-plugin.yml"
)


def _without_cluster(machine: Machine) -> Verdict | None:
    return None if isinstance(machine.cluster, ClusterObjects) else skipped("no cluster that responds")


KUBERNETES = Layer("kubernetes", "Kubernetes", needs="kubernetes.reachable", skips=_without_cluster)


def _cluster(machine: Machine) -> ClusterObjects:
    assert isinstance(machine.cluster, ClusterObjects)
    return machine.cluster


@KUBERNETES.check("reachable", "The cluster responds", "k8s-unreachable", needs="", skips=False, timeout_s=8)
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


@KUBERNETES.check("nodes", "Nodes offer GPUs", "k8s-plugin-sees-no-gpu k8s-no-gpu-resource")
def _nodes(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    gpus = seen.gpus("allocatable")
    if sum(gpus.values()):
        return ok(f"{sum(gpus.values())} GPUs on {', '.join(gpus)}")
    nodes = f"nodes: {', '.join(str(node['metadata']['name']) for node in seen.nodes)}; none has nvidia.com/gpu"
    phases = {str(pod["metadata"]["name"]): (pod.get("status") or {}).get("phase") for pod in seen.pods}
    if plugins := [f"pod {name}: {phase}" for name, phase in phases.items() if PLUGIN in name]:
        return found("k8s-plugin-sees-no-gpu", [*plugins, nodes])
    return found("k8s-no-gpu-resource", [nodes, f"no pod named {PLUGIN}"], fix=f"kubectl apply -f {PLUGIN_MANIFEST}")


@KUBERNETES.check("healthy", "No node has an unhealthy GPU", "k8s-gpu-unhealthy")
def _healthy(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    usable = seen.gpus("allocatable")
    sick = [
        f"{node}: {count} GPUs, {usable.get(node, 0)} healthy"
        for node, count in seen.gpus("capacity").items()
        if count > usable.get(node, 0)
    ]
    return found("k8s-gpu-unhealthy", sick) if sick else ok("every GPU on the nodes is healthy")


@KUBERNETES.check("free", "No pod is waiting for a GPU", "k8s-insufficient-gpus")
def _free(machine: Machine) -> Verdict:
    seen = _cluster(machine)
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
    return ok(f"{total - taken} of {total} GPUs are free") if total else skipped("no node has GPUs")


@KUBERNETES.check("runtime-class", "containerd has the named runtime", "k8s-runtime-missing")
def _runtime_class(machine: Machine) -> Verdict:
    """A RuntimeClass is a name; whether containerd has the runtime shows when a pod's sandbox is made."""
    seen = _cluster(machine)
    messages = (str(event.get("message") or "") for event in seen.events)
    if failed := [message for message in messages if "no runtime for" in message]:
        return found("k8s-runtime-missing", failed[:3])
    handlers = ", ".join(str(one.get("handler")) for one in seen.runtime_classes)
    without = "no RuntimeClass; nvidia must be containerd's default runtime"
    return ok(f"RuntimeClasses: {handlers}" if handlers else without)


@KUBERNETES.check("images", "No pod is waiting for its image", "k8s-image-pull")
def _images(machine: Machine) -> Verdict:
    stuck = []
    for pod in _cluster(machine).pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            waiting: dict[str, Any] = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull"):
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                stuck.append(f"{name}: {status.get('image')}: {waiting['reason']}")
    return found("k8s-image-pull", stuck[:5], severity="warning") if stuck else ok("no pod is waiting for its image")
