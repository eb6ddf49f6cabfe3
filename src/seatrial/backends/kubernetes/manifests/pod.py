"""The pod every kind shares: limits, volumes, shared memory, security, places on GPU pools."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from seatrial.backends.containers.home import home_env
from seatrial.backends.kubernetes.manifests.claim import pod_claims
from seatrial.backends.kubernetes.manifests.names import Manifest, code_name, config_name, secret_name
from seatrial.job.cluster import POD_CONFIG, ClusterPlan, PodMount, Volume
from seatrial.job.plan import CONTAINER_HOME, CONTAINER_RUN, CONTAINER_SECRETS

#: Files of ours that end at a path of their own; subPath mounts, since they lie in folders of the image.
_FILES = {"passwd": "/etc/passwd", "group": "/etc/group"}

#: GPU pools are tainted so that nothing else lands there. Source: GKE and AKS docs on GPU node pools.
GPU_TAINT = "nvidia.com/gpu"

#: Requested for each GPU (once without any) where the job says nothing: torch imported and a small batch.
LEAST_CPUS = 1
LEAST_MEMORY_GIB = 1


def pod_spec(cluster: ClusterPlan, container: str, **env: str) -> Manifest:
    """A pod spec without restartPolicy.

    Args:
        container: the container's name, which operators insist on.
        env: further variables.
    """
    volumes, mounts = _volumes(cluster)
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": cluster.grace_s,
        "securityContext": pod_security(cluster),
        "containers": [
            {
                "name": container,
                "image": cluster.image,
                "imagePullPolicy": "IfNotPresent",
                "command": list(cluster.command),
                "workingDir": cluster.workdir,
                "env": environment(cluster, **env),
                "resources": resources(cluster),
                "securityContext": container_security(cluster),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    further = {
        "nodeSelector": cluster.node_selector,
        "tolerations": tolerations(cluster),
        "priorityClassName": cluster.priority_class,
        "runtimeClassName": cluster.runtime_class,
        "serviceAccountName": cluster.service_account,
        "imagePullSecrets": [{"name": name} for name in cluster.image_pull_secrets],
        "resourceClaims": pod_claims(cluster),
    }
    return {**spec, **{key: value for key, value in further.items() if value}}


def environment(cluster: ClusterPlan, **env: str) -> list[Manifest]:
    """The container's variables, sorted, so that a manifest of the same plan is the same text."""
    variables = {**home_env("seatrial"), "PYTHONUNBUFFERED": "1", **cluster.env, **env}
    if cluster.gpus == 0:
        variables["NVIDIA_VISIBLE_DEVICES"] = (
            "void"  # a node's default runtime would show every GPU to an image of CUDA
        )
    return [{"name": name, "value": value} for name, value in sorted(variables.items())]


def resources(cluster: ClusterPlan) -> Manifest:
    """Requests equal to limits: such a pod is the last to be evicted, and GPUs allow nothing else.

    CPU and memory that nobody asked for are requested without a limit: a scheduler that knows nothing of a pod puts
    it onto a full node, and a limit that nobody chose would kill it. A size of /dev/shm that was asked for is memory
    that will be needed.
    """
    limits: dict[str, str] = {}
    if cluster.cpus is not None:
        limits["cpu"] = f"{cluster.cpus:g}"
    if cluster.memory_bytes is not None:
        limits["memory"] = str(cluster.memory_bytes)
    if cluster.gpus and cluster.claim is None:
        limits[cluster.gpu_resource] = str(cluster.gpus)
    pods_gpus = max(1, cluster.gpus)
    memory_gib = pods_gpus * LEAST_MEMORY_GIB + (cluster.shm_bytes / 2**30 if cluster.shm_requested else 0)
    least = {"cpu": str(pods_gpus * LEAST_CPUS), "memory": f"{memory_gib:g}Gi"}
    claims = [{"name": claim["name"]} for claim in pod_claims(cluster)]
    further = {"limits": limits, "claims": claims}
    return {"requests": {**least, **limits}, **{key: value for key, value in further.items() if value}}


def pod_security(cluster: ClusterPlan) -> Manifest:
    """fsGroup makes volumes writable for a user who is not root."""
    return {
        "runAsNonRoot": True,
        "runAsUser": cluster.uid,
        "runAsGroup": cluster.uid,
        "fsGroup": cluster.uid,
        "fsGroupChangePolicy": "OnRootMismatch",  # a recursive chown of a data set of millions of files takes hours
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security(cluster: ClusterPlan) -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": cluster.read_only_root,
    }


def tolerations(cluster: ClusterPlan) -> list[Manifest]:
    """Those asked for; and, for a pod with GPUs, the taint that GPU pools carry."""
    wanted = []
    for toleration in cluster.tolerations:
        entry: Manifest = {"key": toleration.key, "operator": "Exists" if toleration.value is None else "Equal"}
        if toleration.value is not None:
            entry["value"] = toleration.value
        if toleration.effect is not None:
            entry["effect"] = toleration.effect
        wanted.append(entry)
    if cluster.gpus and not any(toleration.key == GPU_TAINT for toleration in cluster.tolerations):
        wanted.append({"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"})
    return wanted


def config_maps(cluster: ClusterPlan, binaries: Mapping[str, bytes], plan: str) -> list[Manifest]:
    """The agent, its plan and a name for the pod's user; and the code, where that is a ConfigMap.

    Args:
        binaries: file name in POD_CONFIG → content.
    """
    user = f"seatrial:x:{cluster.uid}:{cluster.uid}::{CONTAINER_HOME}:/bin/sh"
    texts = {
        "plan.json": plan,
        "passwd": f"root:x:0:0:root:/root:/bin/sh\n{user}\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
        "group": f"root:x:0:\nseatrial:x:{cluster.uid}:\nnogroup:x:65534:\n",
    }
    binary = {name: base64.b64encode(content).decode() for name, content in binaries.items()}
    maps = [_config_map(cluster, config_name(cluster), texts) | {"binaryData": binary}]
    if cluster.code == "configmap":
        maps.append(
            _config_map(cluster, code_name(cluster), {_key(path): text for path, text in cluster.files.items()})
        )
    return maps


def _config_map(cluster: ClusterPlan, name: str, texts: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": cluster.namespace, "labels": dict(cluster.labels)},
        "data": texts,
    }


def _key(path: str) -> str:
    """A ConfigMap's key of a path: letters, digits, ``-``, ``_`` and ``.`` alone."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in path)


def _volumes(cluster: ClusterPlan) -> tuple[list[Manifest], list[Manifest]]:
    """(volumes, volumeMounts)."""
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": config_name(cluster), "defaultMode": 0o444}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(cluster.shm_bytes)}},
        {"name": "scratch", "emptyDir": {}},
    ]
    mounts: list[Manifest] = [
        {"name": "config", "mountPath": POD_CONFIG, "readOnly": True},
        *({"name": "config", "mountPath": path, "subPath": key, "readOnly": True} for key, path in _FILES.items()),
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},
        {"name": "scratch", "mountPath": CONTAINER_HOME, "subPath": "home"},
    ]
    if cluster.run_mount is None and not cluster.run_in_models:
        mounts.append({"name": "scratch", "mountPath": CONTAINER_RUN, "subPath": "run"})
    if cluster.secrets:
        volumes.append({"name": "secrets", "secret": {"secretName": secret_name(cluster), "defaultMode": 0o440}})
        mounts.append({"name": "secrets", "mountPath": CONTAINER_SECRETS, "readOnly": True})
    if cluster.code == "configmap":
        volumes.append({"name": "code", "configMap": {"name": code_name(cluster), "defaultMode": 0o444}})
        mounts.append({"name": "scratch", "mountPath": cluster.workdir, "subPath": "project"})
        mounts += [
            {"name": "code", "mountPath": f"{cluster.workdir}/{path}", "subPath": _key(path), "readOnly": True}
            for path in cluster.files
        ]
    named: dict[Volume, str] = {}
    for mount in (*cluster.mounts, *([cluster.run_mount] if cluster.run_mount else [])):
        source = mount.volume.model_copy(update={"path": ""})
        if source not in named:
            named[source] = f"volume-{len(named)}"
            volumes.append({"name": named[source], **_source(mount.volume)})
        mounts.append(_mount(named[source], mount))
    return volumes, mounts


def _source(volume: Volume) -> Manifest:
    if volume.kind == "pvc":
        return {"persistentVolumeClaim": {"claimName": volume.value}}
    if volume.kind == "hostpath":
        return {"hostPath": {"path": volume.value}}
    return {"emptyDir": {}}


def _mount(name: str, mount: PodMount) -> dict[str, Any]:
    entry: Manifest = {"name": name, "mountPath": mount.target}
    if path := "/".join(filter(None, [mount.volume.path, mount.sub_path])):
        entry["subPath"] = path
    if mount.read_only:
        entry["readOnly"] = True
    return entry
