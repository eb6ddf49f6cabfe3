"""Layer 10, Kubernetes, where there is a kubeconfig: GPUs that nodes offer, free ones, and pods that wait."""

from __future__ import annotations

from typing import Any

from seatrial.backends.kubernetes.client import configured, not_configured
from seatrial.doctor import cluster
from seatrial.doctor.check import Layer, Verdict, found, ok, skipped, unknown
from seatrial.doctor.cluster import DRA_DRIVER, ClusterError, ClusterObjects
from seatrial.doctor.machine import Machine
from seatrial.job.cluster import Volume
from seatrial.system.command import install_extra

PLUGIN = "nvidia-device-plugin"
PLUGIN_MANIFEST = (
    "https://raw.githubusercontent.com/NVIDIA/k8s-device-plugin/main/deployments/static/nvidia-device-plugin.yml"
)
#: API group → the Deployment of its operator; rights of a run: resource, API group, verbs.
OPERATORS, RIGHTS = cluster.TABLES["operators"], cluster.TABLES["rights"]


def _without_cluster(machine: Machine) -> Verdict | None:
    return None if isinstance(machine.cluster, ClusterObjects) else skipped("no cluster that responds")


KUBERNETES = Layer("kubernetes", "Kubernetes", needs="kubernetes.reachable", skips=_without_cluster)


def _cluster(machine: Machine) -> ClusterObjects:
    assert isinstance(machine.cluster, ClusterObjects)
    return machine.cluster


@KUBERNETES.check("reachable", "The cluster responds", "k8s-unreachable", needs="", skips=False, timeout_s=26)
def _reachable(machine: Machine) -> Verdict:
    path = machine.kubeconfig
    severity = None if machine.on == "k8s" else "warning"  # --on k8s leaves no other backend
    if path is None:
        why = not_configured(machine.host)
        named = machine.host.env.get("KUBECONFIG")
        if not named and (machine.on != "k8s" or configured(machine.host)):
            return skipped(why)
        cause = "The file that KUBECONFIG names does not exist" if named else "No kubeconfig names a cluster"
        fix = f"export KUBECONFIG=FILE{'   # or: unset KUBECONFIG' if named else ''}"
        return found("k8s-unreachable", [why], severity=severity, cause=cause, fix=fix)
    seen = machine.cluster
    if isinstance(seen, ClusterError):
        if seen.installable:
            return unknown(f"{path} exists, but kr8s is not installed; to check the cluster: {install_extra('k8s')}")
        return found("k8s-unreachable", [f"kubeconfig: {path}", str(seen)], severity=severity)
    assert seen is not None
    return ok(f"{seen.server} responds: {len(seen.nodes)} node{'s' * (len(seen.nodes) != 1)}")


@KUBERNETES.check("nodes", "Nodes offer GPUs", "k8s-plugin-sees-no-gpu k8s-no-gpu-resource")
def _nodes(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    if "nodes" in seen.unread:
        return unknown("no permission to list nodes, so their GPUs are unknown")
    extended = {(one.get("spec") or {}).get("extendedResourceName") for one in seen.device_classes}
    by_name, to_claim = "by claims for nvidia.com/gpu", "to claim ([kubernetes] gpu_claims = true)"
    how = by_name if "nvidia.com/gpu" in extended else to_claim
    slices = "MIG slices to claim ([kubernetes] gpu_claims = true)"
    offers = {"GPUs": seen.gpus("allocatable"), f"GPUs {how}": seen.claimable("gpu"), slices: seen.claimable("mig")}
    if lines := [
        f"{sum(each.values())} {what} on {', '.join(each)}" for what, each in offers.items() if any(each.values())
    ]:
        return ok("; ".join(lines))
    nodes = f"nodes: {', '.join(str(node['metadata']['name']) for node in seen.nodes)}; none has nvidia.com/gpu"
    if any(one["metadata"]["name"] == DRA_DRIVER for one in seen.device_classes):
        cause = "NVIDIA's driver for Dynamic Resource Allocation is installed, and reports no GPU"
        evidence = [nodes, f"DeviceClass {DRA_DRIVER}, and no ResourceSlice of that driver"]
        return found("k8s-no-gpu-resource", evidence, cause=cause, fix="kubectl get pods --all-namespaces | grep dra")
    phases = {str(pod["metadata"]["name"]): (pod.get("status") or {}).get("phase") for pod in seen.pods}
    if plugins := [f"pod {name}: {phase}" for name, phase in phases.items() if PLUGIN in name]:
        return found("k8s-plugin-sees-no-gpu", [*plugins, nodes])
    return found("k8s-no-gpu-resource", [nodes, f"no pod named {PLUGIN}"], fix=f"kubectl apply -f {PLUGIN_MANIFEST}")


@KUBERNETES.check("namespace", "The namespace has quota left", "k8s-quota")
def _namespace(machine: Machine) -> Verdict:
    """Check the quotas, and read the level of Pod Security: only a hostPath keeps our pods from restricted."""
    seen = _cluster(machine)
    level = seen.labels.get("pod-security.kubernetes.io/enforce", "privileged")
    full = [
        f"{quota['metadata']['name']}: {name} {limit} of {limit}"
        for quota in seen.quotas
        for name, limit in (quota["status"].get("hard") or {}).items()
        if (quota["status"].get("used") or {}).get(name) == limit
    ]
    if full:
        return found("k8s-quota", full, severity="warning")
    quota = "no permission to list quotas" if "quotas" in seen.unread else "no quota is used up"
    volumes = "" if level == "privileged" else ", which admits no hostpath volume"
    return ok(f"{seen.namespace}: {quota}; Pod Security {level}{volumes}")


@KUBERNETES.check("operators", "Installed operators run", "k8s-operator-down")
def _operators(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    status = {one["metadata"]["name"]: one.get("status") or {} for one in seen.deployments}
    installed = [name for group, name in OPERATORS.items() if group in seen.groups and name in status]
    idle = (name for name in installed if not status[name].get("availableReplicas"))
    if down := [f"Deployment {name}: none available" for name in idle]:
        return found("k8s-operator-down", down, severity="warning")
    return ok(f"{', '.join(installed) or 'no operator was found; --kind job needs none'}")


@KUBERNETES.check("rights", "The user has the rights of a run", "k8s-forbidden")
def _rights(machine: Machine) -> Verdict:
    seen = _cluster(machine)
    if seen.rules is None:
        return unknown("the cluster does not list this user's rights")

    def allowed(verb: str, group: str, resource: str) -> bool:
        wanted = {"verbs": verb, "apiGroups": group, "resources": resource}
        rules = seen.rules or ()
        return any(all({value, "*"} & set(rule.get(key) or ()) for key, value in wanted.items()) for rule in rules)

    needed = [(verb, group, resource) for resource, group, verbs in RIGHTS for verb in verbs]
    missing = [f"{verb} {resource}" for verb, group, resource in needed if not allowed(verb, group, resource)]
    if missing:
        fix = f"kubectl -n {seen.namespace} apply -f docs/kubernetes-role.yaml   # by the cluster's administrator"
        return found("k8s-forbidden", [f"missing in {seen.namespace}: {', '.join(missing)}"], fix=fix)
    return ok(f"a run is allowed in {seen.namespace}")


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
    if "pods" in seen.unread:
        return unknown("no permission to list the cluster's pods")
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
    return ok(f"{total - taken} of {total} GPUs are free") if total else skipped("no node reports GPUs")


@KUBERNETES.check("runtime-class", "containerd has the named runtime", "k8s-runtime-missing")
def _runtime_class(machine: Machine) -> Verdict:
    """Find pods whose runtime containerd lacks, which shows when their sandbox is made, not in a RuntimeClass."""
    seen = _cluster(machine)
    messages = (str(event.get("message") or "") for event in seen.events)
    if failed := [message for message in messages if "no runtime for" in message]:
        return found("k8s-runtime-missing", failed[:3])
    handlers = ", ".join(str(one.get("handler")) for one in seen.runtime_classes)
    without = "no RuntimeClass; nvidia must be containerd's default runtime"
    return ok(f"RuntimeClasses: {handlers}" if handlers else without)


@KUBERNETES.check("images", "No pod is waiting for its image", "k8s-image-pull")
def _images(machine: Machine) -> Verdict:
    stuck: list[str] = []
    if "pods" in _cluster(machine).unread:
        return unknown("no permission to list the cluster's pods")
    for pod in _cluster(machine).pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or []:
            waiting: dict[str, Any] = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in ("ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull"):
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                stuck.append(f"{name}: {status.get('image')}: {waiting['reason']}")
    return found("k8s-image-pull", stuck[:5], severity="warning") if stuck else ok("no pod is waiting for its image")


def trying(image: str, models: Volume) -> Layer:
    """Return the layer whose check runs a short pod."""
    layer = Layer("kubernetes-try", "A pod on the cluster", needs="kubernetes.reachable", skips=_without_cluster)

    @layer.check("pod", "A pod pulls, mounts, writes, logs and ends", "k8s-pod-failed", timeout_s=cluster.TRY_S + 15)
    def _pod(machine: Machine) -> Verdict:
        assert machine.kubeconfig is not None, "its cluster responds"
        try:
            return ok(cluster.try_pod(machine.kubeconfig, image, models))
        except ClusterError as error:
            return found("k8s-pod-failed", [f"image: {image}", str(error)])

    return layer
