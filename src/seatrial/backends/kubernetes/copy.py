"""Fetching what a run saved: a small pod mounts the models volume, and its files come through exec as a tar stream."""

from __future__ import annotations

import tarfile
import tempfile
import time
from pathlib import Path

from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.manifests.names import MANAGED_BY, Manifest
from seatrial.backends.kubernetes.manifests.pod import container_security, pod_security
from seatrial.errors import DiskError, EngineError, UsageError
from seatrial.job.cluster import ClusterPlan
from seatrial.job.plan import CONTAINER_MODELS
from seatrial.system.typed_path import as_typed

START_TIMEOUT_S = 120.0

#: Run in the helper: any image that could run the agent has this much Python.
_PACK = (
    "import os, sys, tarfile\n"
    "path = os.path.join(sys.argv[1], sys.argv[2])\n"
    "if not os.path.exists(path): sys.exit('there is no ' + sys.argv[2])\n"
    "with tarfile.open(fileobj=sys.stdout.buffer, mode='w|') as tar:\n"
    "    tar.add(path, arcname='.' if os.path.isdir(path) else os.path.basename(path))\n"
)


def fetch(cluster: Cluster, plan: ClusterPlan, path: str, destination: Path) -> list[str]:
    """Copy a file or folder of the run's models volume; names of the files that came.

    Args:
        path: relative to /models; "" is all of it.

    Raises:
        UsageError: the run had no volume, or there is no such path.
        EngineError: the helper pod does not start.
    """
    models = next((mount for mount in plan.mounts if mount.target == CONTAINER_MODELS), None)
    if models is None or not models.volume.lasting:
        raise UsageError(
            "The run's models were in its pod and were deleted with it", run="seatrial run … --models pvc:NAME"
        )
    pods = f"/api/v1/namespaces/{plan.namespace}/pods"
    name = f"{plan.name}-cp-{int(time.time()) % 100000}"
    cluster.create(pods, _helper(plan, name))
    try:
        _wait(cluster, f"{pods}/{name}", name)
        with tempfile.TemporaryFile() as archive:
            complaint = bytearray()
            argv = [plan.command[0], "-c", _PACK, CONTAINER_MODELS, path]
            code = cluster.call(cluster.execute(plan.namespace, name, argv, archive.write, complaint.extend))
            if code != 0:
                said = complaint.decode(errors="replace").strip() or f"exit code {code}"
                raise UsageError(f"/models of the run cannot be copied: {said}", run="seatrial runs cp RUN .")
            archive.seek(0)
            return _unpack(archive, destination)
    finally:
        cluster.delete(f"{pods}/{name}", grace_s=0)


def _helper(plan: ClusterPlan, name: str) -> Manifest:
    """The workload's own pod, without its command and its other mounts; its image is on the node already."""
    mount = next(mount for mount in plan.mounts if mount.target == CONTAINER_MODELS)
    volume = mount.volume
    source = (
        {"persistentVolumeClaim": {"claimName": volume.value}}
        if volume.kind == "pvc"
        else {"hostPath": {"path": volume.value}}
    )
    sub_path = {"subPath": volume.path} if volume.path else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": plan.namespace, "labels": {MANAGED_BY: "seatrial"}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "activeDeadlineSeconds": 3600,
            "securityContext": pod_security(plan),
            "imagePullSecrets": [{"name": secret} for secret in plan.image_pull_secrets],
            "containers": [
                {
                    "name": "copy",
                    "image": plan.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": [plan.command[0], "-c", "import time; time.sleep(3600)"],
                    "securityContext": container_security(plan),
                    "volumeMounts": [{"name": "models", "mountPath": CONTAINER_MODELS, "readOnly": True, **sub_path}],
                }
            ],
            "volumes": [{"name": "models", **source}],
        },
    }


def _wait(cluster: Cluster, path: str, name: str) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while (pod := cluster.get(path)["status"]).get("phase") != "Running":
        if pod.get("phase") == "Failed" or time.monotonic() > deadline_s:
            raise EngineError(f"The copy pod did not start: {pod.get('phase')}", run=f"kubectl describe pod {name}")
        time.sleep(0.3)


def _unpack(archive: object, destination: Path) -> list[str]:
    """Members of the archive under ``destination``; none may leave it."""
    with tarfile.open(fileobj=archive, mode="r") as tar:  # type: ignore[call-overload]
        members = [member for member in tar.getmembers() if member.isfile() or member.isdir()]
        root = destination.resolve()
        for member in members:
            member.mode &= 0o755  # a pod makes nobody here the owner of a setuid program
            if not (root / member.name).resolve().is_relative_to(root):
                raise EngineError(f"The archive contains a path outside its root: {member.name}")
        try:
            destination.mkdir(parents=True, exist_ok=True)
            if hasattr(tarfile, "data_filter"):  # 3.12, and later patches of the ones before
                tar.extractall(destination, members, filter="data")
            else:
                tar.extractall(destination, members)
        except OSError as error:
            raise DiskError(
                f"Cannot write {destination}: {error.strerror}", run=f"df -h {as_typed(destination)}"
            ) from error
        return sorted(member.name.removeprefix("./") for member in members if member.isfile())
