"""Why a pod does not run: what the scheduler and the kubelet say, with the facts that they leave out. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.backends.kubernetes.pods import Pod
from seatrial.backends.kubernetes.survey import Node
from seatrial.findings.finding import Finding


@dataclass(frozen=True)
class Surroundings:
    """What is known around the pod.

    Attributes:
        item: the pod as the API has it.
        nodes: None when they may not be listed. holders: (namespace/pod, GPUs) of pods that hold some, None likewise.
    """

    item: dict[str, Any]
    gpu_resource: str
    nodes: tuple[Node, ...] | None = None
    holders: tuple[tuple[str, int], ...] | None = None

    @property
    def wanted_gpus(self) -> int:
        containers = self.item.get("spec", {}).get("containers") or [{}]
        return int(containers[0].get("resources", {}).get("limits", {}).get(self.gpu_resource, 0))


def explain(pod: Pod, reason: str, message: str, around: Surroundings) -> Finding | None:
    """What holds this pod up, or None for what is no trouble.

    Args:
        reason, message: of an event about it, or of its waiting container.
    """
    said = f"{reason}: {message}"
    for pattern, make in _CAUSES:
        if re.search(pattern, said):
            finding = make(pod, message, around)
            finding.evidence.append(f"{pod.name}: {said}"[:300])
            return finding
    return None


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


def _gpus(pod: Pod, message: str, around: Surroundings) -> Finding:
    """Insufficient nvidia.com/gpu: how many there are, who has them, which node would fit."""
    wanted, resource = around.wanted_gpus, around.gpu_resource
    if around.nodes is None:
        return _stuck(
            "k8s-insufficient-gpus", pod, f"no node has {wanted} free {resource}", "No permission to list nodes"
        )
    with_gpus = [node for node in around.nodes if node.capacity or node.allocatable]
    if not with_gpus:
        return _stuck(
            "k8s-no-gpu-nodes",
            pod,
            f"no node of the cluster offers {resource}",
            "The device plugin is not installed or not ready, or the GPU pool is scaled to zero",
            "kubectl get pods -A | grep device-plugin; kubectl get nodes -L nvidia.com/gpu.product",
        )
    allocatable = sum(node.allocatable for node in with_gpus)
    unhealthy = sum(max(0, node.capacity - node.allocatable) for node in with_gpus)
    held = sum(count for _, count in around.holders or ())
    best = max(with_gpus, key=lambda node: node.allocatable)
    facts = f"{wanted} {resource} requested, {allocatable} allocatable on {len(with_gpus)} node(s)"
    if unhealthy:
        facts += f", {unhealthy} unhealthy"
    if around.holders:
        names = ", ".join(f"{name} ({count})" for name, count in around.holders[:4])
        facts += f", {held} held by {names}" + (" …" if len(around.holders) > 4 else "")
    if best.allocatable < wanted:
        return _stuck(
            "k8s-insufficient-gpus",
            pod,
            facts,
            f"No node has that many: the largest, {best.name}, has {best.allocatable}",
            f"seatrial run … --gpus {best.allocatable} --nodes {-(-wanted // max(1, best.allocatable))}",
        )
    return _stuck(
        "k8s-insufficient-gpus",
        pod,
        facts,
        f"{best.name} has the capacity once they are free",
        f"kubectl describe node {best.name} | grep -A8 'Allocated resources'",
    )


def _resources(pod: Pod, message: str, around: Surroundings) -> Finding:
    what = ", ".join(sorted(set(re.findall(r"Insufficient ([\w./-]+?)(?=[,.\s]|$)", message))))
    return _stuck(
        "k8s-insufficient-resources",
        pod,
        f"no node has enough {what}",
        "Other pods use it, or the request is larger than any node",
        "kubectl describe nodes | grep -A8 'Allocated resources'   # or a smaller --cpus, --memory",
    )


def _taint(pod: Pod, message: str, around: Surroundings) -> Finding:
    taints = sorted(set(re.findall(r"taint[s]? \{([^}]*)\}", message)))
    shown = ", ".join(taint.rstrip(": ").strip() for taint in taints) or "a taint"
    key = taints[0].split(":")[0].split("=")[0].strip() if taints else "KEY"
    return _stuck(
        "k8s-taint",
        pod,
        f"nodes have a taint that the pod does not tolerate: {shown}",
        "The node pool is reserved for pods with a matching toleration",
        f'seatrial run … with [kubernetes] tolerations = ["{key}"]',
    )


def _selector(pod: Pod, message: str, around: Surroundings) -> Finding:
    wanted = around.item.get("spec", {}).get("nodeSelector") or {}
    shown = ", ".join(f"{key}={value}" for key, value in wanted.items())
    have = ""
    if around.nodes is not None and wanted:
        key = next(iter(wanted))
        values = sorted({node.labels[key] for node in around.nodes if key in node.labels})
        have = f"; {key} is {', '.join(values)}" if values else f"; no node has the label {key}"
    return _stuck(
        "k8s-node-selector",
        pod,
        f"no node has the requested labels: {shown or message}{have}",
        "The selector names a node pool or GPU model that is not in the cluster now",
        "kubectl get nodes --show-labels",
    )


def _volume(pod: Pod, message: str, around: Surroundings) -> Finding:
    claim = re.search(r'persistentvolumeclaim "([^"]+)" not found', message)
    if claim:
        fix = "kubectl get pvc"
        return _stuck(
            "k8s-volume", pod, f"there is no PersistentVolumeClaim {claim[1]}", "Wrong name or namespace", fix
        )
    return _stuck(
        "k8s-volume",
        pod,
        "its volume is not bound or cannot be mounted",
        "No StorageClass provides it, or a ReadWriteOnce volume is on another node",
        "kubectl get pvc,pv,storageclass; kubectl describe pvc",
    )


def _quota(pod: Pod, message: str, around: Surroundings) -> Finding:
    return _stuck(
        "k8s-quota",
        pod,
        "the namespace's quota is used up",
        "A ResourceQuota limits this namespace",
        "kubectl describe resourcequota",
    )


def _image_pull(pod: Pod, message: str, around: Surroundings) -> Finding:
    image = (around.item.get("spec", {}).get("containers") or [{}])[0].get("image", "the image")
    low = message.lower()
    if "no space left" in low:
        cause, fix = "The node's disk is full", "kubectl describe node | grep -A5 DiskPressure   # or a slimmer image"
    elif any(word in low for word in ("unauthorized", "denied", "forbidden", "no basic auth")):
        cause, fix = (
            "The registry needs a login, or the name is wrong: registries give the same error for both",
            'kubectl create secret docker-registry NAME …, then [kubernetes] image_pull_secrets = ["NAME"]',
        )
    elif any(word in low for word in ("not found", "manifest unknown", "does not exist")):
        cause, fix = (
            "There is no such image or tag",
            f"docker push {image}   # [kubernetes] registry does this automatically",
        )
    elif any(word in low for word in ("no such host", "timeout", "connection refused", "dial tcp", "network")):
        cause, fix = "The node cannot reach the registry", "kubectl get events --field-selector reason=Failed"
    else:
        cause, fix = "Wrong name, no access, or an unreachable registry", f"kubectl describe pod {pod.name}"
    return _stuck("k8s-image-pull", pod, f"the node cannot pull {image}", cause, fix)


def _image_never(pod: Pod, message: str, around: Surroundings) -> Finding:
    image = (around.item.get("spec", {}).get("containers") or [{}])[0].get("image", "the image")
    return _stuck(
        "k8s-image-not-there",
        pod,
        f"{image} is not on the node, and the pull policy forbids pulling",
        "It was built here and never reached the node",
        f"kind load docker-image {image}   # or [kubernetes] registry",
    )


def _runtime_class(pod: Pod, message: str, around: Surroundings) -> Finding:
    return _stuck(
        "k8s-runtime-class",
        pod,
        "its RuntimeClass cannot be used",
        "It does not exist, or the node's containerd has no such runtime",
        "kubectl get runtimeclass",
    )


def _unhealthy(pod: Pod, message: str, around: Surroundings) -> Finding:
    return _stuck(
        "k8s-gpu-unhealthy",
        pod,
        "the node's GPU is marked unhealthy",
        "The device plugin saw an Xid error",
        f"kubectl describe node {pod.host or ''} | grep -A12 Allocatable",
    )


def _config(pod: Pod, message: str, around: Surroundings) -> Finding:
    return _stuck(
        "k8s-config-missing",
        pod,
        f"the container cannot be created: {message}",
        "A ConfigMap or Secret was deleted or edited during the run",
        "seatrial runs stop RUN && seatrial run --resume RUN",
    )


def _oom(pod: Pod, message: str, around: Surroundings) -> Finding:
    return _stuck(
        "k8s-oom-killed",
        pod,
        "it was killed for using more memory than its limit",
        "The script needs more than --memory",
        "seatrial run … --memory 16GB",
    )


def _evicted(pod: Pod, message: str, around: Surroundings) -> Finding:
    return _stuck(
        "k8s-evicted",
        pod,
        f"the node evicted it: {message}",
        "Preemption by a higher priority, a drain, or a node short of memory or disk",
        'seatrial run … with [kubernetes] models = "pvc:NAME" resumes from its checkpoints',
        severity="warning",
    )


#: What scheduler, kubelet and controllers say → who explains it. The first that fits.
#: Sources: kubernetes pkg/scheduler/framework/plugins/*, pkg/kubelet/images, pkg/kubelet/events/event.go.
_CAUSES: tuple[tuple[str, Callable[[Pod, str, Surroundings], Finding]], ...] = (
    (r"unhealthy devices? ", _unhealthy),
    (r"ErrImageNeverPull", _image_never),
    (r"ErrImagePull|ImagePullBackOff|Failed to pull image|InvalidImageName", _image_pull),
    (r"exceeded quota", _quota),
    (r"[Rr]untime[Cc]lass|no runtime for", _runtime_class),
    (r"Insufficient [\w.-]+/", _gpus),
    (
        r"persistentvolumeclaim|unbound immediate|volume node affinity|FailedMount.*(pvc|claim)|FailedAttachVolume",
        _volume,
    ),
    (r"untolerated taint|had taint", _taint),
    (r"didn't match (Pod's )?node (affinity|selector)|didn't match node selector", _selector),
    (r"FailedScheduling.*Insufficient", _resources),
    (r"OOMKilled|OOMKilling", _oom),
    (r"CreateContainerConfigError", _config),
    (r"Evicted|Preempt|TaintManagerEviction", _evicted),
)


def _stuck(
    id: str, pod: Pod, what: str, cause: str, fix: str = "kubectl describe pod", *, severity: str = "error"
) -> Finding:
    return Finding(id, severity, f"Node {pod.node}: {what}", cause, fix)
