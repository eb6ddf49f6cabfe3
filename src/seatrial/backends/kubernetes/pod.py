"""Render the pod that every kind of workload shares: limits, volumes, mounts, security, GPUs; check its admission."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from seatrial.backends.containers.mounts import home_env, user_files
from seatrial.errors import UsageError
from seatrial.job.cluster import POD_CONFIG, ClusterPlan, PodMount, Volume
from seatrial.job.in_container import CONTAINER_HOME, CONTAINER_PROJECT, CONTAINER_RUN, CONTAINER_SECRETS, RUN_LABEL
from seatrial.system.project_files import own_table

MANAGED_BY = "app.kubernetes.io/managed-by"
#: NVIDIA's driver for Dynamic Resource Allocation, before the names of its devices' attributes.
_DRA_DRIVER = "gpu.nvidia.com"
#: Name of a pod's GPU claim, and of the one request in it.
_CLAIM = "gpus"

Manifest = dict[str, Any]
#: Annotation with the container that commands use. Source: kubernetes.io, labels-annotations-taints.
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
#: Files that are mounted by subPath, since they lie in folders of the image.
_FILES = {"passwd": "/etc/passwd", "group": "/etc/group"}
#: The taint that keeps other pods off GPU pools. Source: GKE and AKS docs on GPU node pools.
GPU_TAINT = "nvidia.com/gpu"
#: Requested for each GPU (once without any) if the job sets none: enough to import torch and train a small batch.
LEAST_CPUS = 1
LEAST_MEMORY_GIB = 1
#: Rules of the operators' validating webhooks, and of the API server.
_ADMISSION = Path(__file__).with_name("admission.toml")
#: Names in that table → RFC 1035, RFC 1123, and Kubernetes' domain-prefixed path.
_LABEL = "[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_PATTERNS = {"LABEL": _LABEL, "SUBDOMAIN": _SUBDOMAIN, "MANAGER": _SUBDOMAIN.replace("$", "/", 1) + r"/[\w/%.~:@+-]+"}


def pod_spec(cluster: ClusterPlan, container: str) -> Manifest:
    """Return a pod's spec without restartPolicy; operators prescribe the name of its ``container``."""
    volumes, mounts = _volumes(cluster)
    claim = {"name": _CLAIM, "resourceClaimTemplateName": object_name(cluster, "gpus")}
    spec: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": cluster.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": cluster.uid,
            "runAsGroup": cluster.uid,
            "fsGroup": cluster.uid,  # makes volumes writable for a user who is not root
            "fsGroupChangePolicy": "OnRootMismatch",  # a recursive chown of millions of files takes hours
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": container,
                "image": cluster.image,
                "imagePullPolicy": "IfNotPresent",
                "command": list(cluster.command),
                "workingDir": cluster.workdir,
                "env": _environment(cluster),
                "resources": _resources(cluster),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": cluster.read_only_root,
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    further = {
        "nodeSelector": cluster.node_selector,
        "tolerations": _tolerations(cluster),
        "priorityClassName": cluster.priority_class,
        "runtimeClassName": cluster.runtime_class,
        "serviceAccountName": cluster.service_account,
        "imagePullSecrets": [{"name": name} for name in cluster.image_pull_secrets],
        "resourceClaims": [claim] if cluster.claim else [],
    }
    return {**spec, **{key: value for key, value in further.items() if value}}


def _environment(cluster: ClusterPlan) -> list[Manifest]:
    """Return the container's variables, sorted, as they were given: a kubelet fills in ``$(NAME)``, but not ``$$(``."""
    variables = {**home_env("seatrial"), "PYTHONUNBUFFERED": "1", **cluster.env}
    if cluster.gpus == 0:  # a node's default runtime would show every GPU to a CUDA image
        variables["NVIDIA_VISIBLE_DEVICES"] = "void"
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in sorted(variables.items())]


def _resources(cluster: ClusterPlan) -> Manifest:
    """Return requests equal to limits, as GPUs need, unless the job has its own: such a pod is evicted last.

    CPU and memory that the job leaves open are requested without a limit, so that no full node takes the pod and no
    unchosen limit kills it. A requested size of /dev/shm is memory that will be needed.
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
    further = {"limits": limits, "claims": [{"name": _CLAIM}] if cluster.claim else []}
    requests = {**least, **limits, **cluster.requests}
    return {"requests": requests, **{key: value for key, value in further.items() if value}}


def _tolerations(cluster: ClusterPlan) -> list[Manifest]:
    """Return the job's tolerations and, for a pod with GPUs, one of the taint that GPU pools carry."""
    wanted: list[Manifest] = []
    for each in cluster.tolerations:
        further = {"value": each.value, "effect": each.effect}
        entry = {"key": each.key, "operator": "Exists" if each.value is None else "Equal"}
        wanted.append(entry | {key: value for key, value in further.items() if value is not None})
    if cluster.gpus and not any(toleration.key == GPU_TAINT for toleration in cluster.tolerations):
        wanted.append({"key": GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"})
    return wanted


def object_name(cluster: ClusterPlan, part: str) -> str:
    """Return the name of what a workload brings along: its ``config``, ``code``, ``secrets`` or ``gpus``."""
    return f"seatrial-{cluster.labels[RUN_LABEL]}-{part}"


def selector(run_id: str) -> str:
    """Return the label selector of everything of one run."""
    return f"{RUN_LABEL}={run_id}"


def described(
    cluster: ClusterPlan,
    kind: str,
    name: str,
    api_version: str = "v1",
    labels: Mapping[str, str] = MappingProxyType({}),
    **content: Any,
) -> Manifest:
    """Return an object of the run: its kind, its name, the run's labels and more, and what it holds."""
    named = {"name": name, "namespace": cluster.namespace, "labels": {**cluster.labels, **labels}}
    return {"apiVersion": api_version, "kind": kind, "metadata": named, **content}


def secret(cluster: ClusterPlan, values: Mapping[str, str]) -> Manifest:
    """Return the Secret of the run's secrets: at the last moment, and never printed."""
    return described(cluster, "Secret", object_name(cluster, "secrets"), stringData=dict(values))


def config_maps(cluster: ClusterPlan, binaries: Mapping[str, bytes], plan: str) -> list[Manifest]:
    """Return the ConfigMap of the agent, its plan and a name for the pod's user; and one of the code, if it has any."""
    passwd, group = user_files("seatrial", str(cluster.uid), str(cluster.uid))
    texts = {"plan.json": plan, "passwd": passwd, "group": group}
    binary = {name: base64.b64encode(content).decode() for name, content in binaries.items()}
    maps = [described(cluster, "ConfigMap", object_name(cluster, "config"), data=texts, binaryData=binary)]
    if cluster.code == "configmap":
        code = {config_key(path): text for path, text in cluster.files.items()}
        maps.append(described(cluster, "ConfigMap", object_name(cluster, "code"), data=code))
    return maps


def claim_template(cluster: ClusterPlan) -> list[Manifest]:
    """Return the template (resource.k8s.io/v1) of which the cluster makes a claim for each pod; [] without a claim."""
    if (claim := cluster.claim) is None:
        return []
    wanted: Manifest = {"deviceClassName": claim.device_class, "allocationMode": "ExactCount", "count": cluster.gpus}
    if claim.profile is not None:
        expression = f"device.attributes['{_DRA_DRIVER}'].profile == '{claim.profile}'"
        wanted["selectors"] = [{"cel": {"expression": expression}}]
    spec = {"spec": {"devices": {"requests": [{"name": _CLAIM, "exactly": wanted}]}}}
    return [described(cluster, "ResourceClaimTemplate", object_name(cluster, "gpus"), "resource.k8s.io/v1", spec=spec)]


def config_key(path: str) -> str:
    """Turn a path into a ConfigMap's key: letters, digits, ``-``, ``_`` and ``.`` only."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in path)


def _volumes(cluster: ClusterPlan) -> tuple[list[Manifest], list[Manifest]]:
    """Return the pod's volumes and its container's volumeMounts."""
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": object_name(cluster, "config"), "defaultMode": 0o444}},
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
        source = {"secretName": object_name(cluster, "secrets"), "defaultMode": 0o440}
        volumes.append({"name": "secrets", "secret": source})
        mounts.append({"name": "secrets", "mountPath": CONTAINER_SECRETS, "readOnly": True})
    if cluster.code == "configmap":
        volumes.append({"name": "code", "configMap": {"name": object_name(cluster, "code"), "defaultMode": 0o444}})
        mounts.append({"name": "scratch", "mountPath": cluster.workdir, "subPath": "project"})
        mounts += [
            {"name": "code", "mountPath": f"{CONTAINER_PROJECT}/{path}", "subPath": config_key(path), "readOnly": True}
            for path in cluster.files
        ]
    named: dict[tuple[str, str], str] = {}
    for mount in (*cluster.mounts, *([cluster.run_mount] if cluster.run_mount else [])):
        if (volume := (mount.volume.kind, mount.volume.value)) not in named:
            named[volume] = f"volume-{len(named)}"
            volumes.append({"name": named[volume], **_source(mount.volume)})
        mounts.append(_mount(named[volume], mount))
    return volumes, mounts


def agent_volumes(cluster: ClusterPlan) -> tuple[list[Manifest], list[Manifest]]:
    """Return what the agent needs in a pod of the user's own: its files, the secrets and the run's folder."""
    volumes, mounts = _volumes(cluster)
    needed = (POD_CONFIG, CONTAINER_SECRETS, CONTAINER_RUN)
    kept = [{**mount, "name": f"seatrial-{mount['name']}"} for mount in mounts if mount["mountPath"] in needed]
    named = {mount["name"] for mount in kept}
    return [{**one, "name": name} for one in volumes if (name := f"seatrial-{one['name']}") in named], kept


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


def check_admission(manifest: Mapping[str, Any], file: str | None) -> None:
    """Check a manifest, the user's ``file`` or ours, by the operators' rules. Raises UsageError for a violation."""
    for operator, table in own_table(_ADMISSION).items():
        for rule in table["rules"] if manifest["kind"] in table["kinds"] else ():
            values = [str(value) for value in _values(manifest, rule["at"].split("|"))]
            wrong = [value for value in values if not re.fullmatch(_PATTERNS.get(rule["fits"], rule["fits"]), value)]
            applies = "when" not in rule or any(True for _ in _values(manifest, rule["when"].split("|")))
            if applies and (len(wrong) == len(values) if rule.get("any") else wrong):
                got = f", got {wrong[0]}" if wrong else ""
                message = f"{file or manifest['kind']}: {rule['field']} must be {rule['must']}{got}"
                run = f"${{EDITOR:-vi}} {file}" if file else "seatrial run … --kind job"
                raise UsageError(message, cause=f"{operator} refuses it ({table['source']})", run=run)


def _values(value: Any, steps: Sequence[str]) -> Iterator[Any]:
    if not steps:
        yield value
    elif steps[0] == "names":
        yield from _names(value)
    elif steps[0] == "~":
        yield from value or ()
    elif steps[0] == "*":
        for each in value or ():
            yield from _values(each, steps[1:])
    elif isinstance(value, Mapping) and value.get(steps[0]) is not None:
        yield from _values(value[steps[0]], steps[1:])


def _names(manifest: Any) -> Iterator[str]:
    """Yield the longest name of each Job of a JobSet, and of its pods with the suffix of theirs."""
    for job in manifest["spec"].get("replicatedJobs") or ():
        name = f"{manifest['metadata']['name']}-{job['name']}-{int(job.get('replicas', 1)) - 1}"
        yield from (name, f"{name}-{int(job['template']['spec'].get('completions') or 1) - 1}-abcde")
