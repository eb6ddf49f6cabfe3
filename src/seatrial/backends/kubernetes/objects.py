"""The objects of a run on a cluster: create them, end the run, copy its models out."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.backends.kubernetes.client import ApiError, Cluster
from seatrial.backends.kubernetes.manifests import KINDS
from seatrial.backends.kubernetes.pod import MANAGED_BY, Manifest, pod_spec, selector
from seatrial.backends.kubernetes.survey import Pod, read_pod
from seatrial.errors import DiskError, EngineError, SeatrialError, UsageError, os_errors
from seatrial.job.cluster import ClusterPlan
from seatrial.job.in_container import CONTAINER_MODELS, RUN_LABEL
from seatrial.system.text import as_typed

#: API kind → its row, of the workloads: they own the other objects, and deleting them deletes all.
OWNERS = {row.api_kind: row for row in KINDS.values()}

#: API kind → (base path, plural).
RESOURCES: dict[str, tuple[str, str]] = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Service": ("/api/v1", "services"),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    **{kind: (f"/apis/{row.api_version}", row.plural) for kind, row in OWNERS.items()},
}
#: Time for pods to end after a deletion, in addition to their grace period.
END_TIMEOUT_S = 30.0
POLL_S = 0.2
#: Time for the cluster to pass the deletion of a workload on to its pods, also through the Jobs of a JobSet.
PASSED_ON_S = 10.0
#: On Services that the training operator makes: the name of their PyTorchJob. Our own label is not on them.
#: Source: kubeflow/training-operator pkg/apis/kubeflow.org/v1/common_types.go.
_JOB_NAME = "training.kubeflow.org/job-name"

START_TIMEOUT_S = 120.0
CONTAINER = "copy"

#: Run in the helper: any image that could run the agent has this much Python.
_PACK = Path(__file__).with_name("pack.py.txt").read_text("utf-8")


def path_of(manifest: Manifest, *, named: bool = True) -> str:
    """Return the API path of an object, or of the collection it is made in."""
    base, plural = RESOURCES[manifest["kind"]]
    path = f"{base}/namespaces/{manifest['metadata']['namespace']}/{plural}"
    return f"{path}/{manifest['metadata']['name']}" if named else path


def submit(cluster: Cluster, manifests: Sequence[Manifest], *, ours: bool = True) -> list[dict[str, Any]]:
    """Create the manifests after a dry run of each, or nothing; return the server's objects. Raises SeatrialError."""
    for manifest in manifests:
        _try(cluster, manifest, ours=ours)
    made: list[Manifest] = []
    try:
        for manifest in manifests:
            made.append(cluster.create(path_of(manifest, named=False), manifest) | {"kind": manifest["kind"]})
        named, workloads = ("apiVersion", "kind", "name", "uid"), [one for one in made if one["kind"] in OWNERS]
        owners = [{key: one.get(key) or one["metadata"][key] for key in named} for one in workloads]
        for manifest in made:
            if manifest["kind"] not in OWNERS:
                cluster.patch(path_of(manifest), {"metadata": {"ownerReferences": owners}})
    except BaseException:
        for manifest in reversed(made):  # the workload first
            with contextlib.suppress(SeatrialError):  # it does not hide the error that led here
                cluster.delete(path_of(manifest))
        raise
    return made


def _try(cluster: Cluster, manifest: Manifest, *, ours: bool) -> None:
    """Create an object in a dry run. Raises UsageError naming the command that installs a kind that is missing."""
    try:
        cluster.create(path_of(manifest, named=False), manifest, dry_run=True)
    except ApiError as error:
        row = OWNERS.get(manifest["kind"])
        no_namespace = error.message.startswith("Namespace ")
        if error.status != 404 or no_namespace or row is None or row.install is None:
            raise
        message = f"The cluster has no {row.plural}.{row.api_version.partition('/')[0]}"
        run = f"kubectl apply --server-side {row.install}" + "   # or: seatrial run … --kind job" * ours
        raise UsageError(message, cause="its operator is not installed", run=run) from error


def end(cluster: Cluster, plan: ClusterPlan, workloads: Sequence[str], grace_s: int) -> None:
    """Delete the run's workloads (API paths) and wait until its pods have ended; ``grace_s`` from now on, 0 kills.

    In the foreground: a controller makes nothing for a workload that is being deleted, and what it made goes with it.
    An orphaning deletion would leave the operator's Services, and a JobSet that starts its pods again.
    """
    for path in workloads:
        cluster.delete(path, propagation="Foreground")
    begin_s = time.monotonic()
    deleted: set[str] = set()
    while True:
        pods, waited_s = pods_of(cluster, plan), time.monotonic() - begin_s
        if all(pod.ended for pod in pods) or waited_s > grace_s + END_TIMEOUT_S:
            break
        for pod in pods:
            # Deleted by us before its owner is, a pod would be made again.
            if pod.uid not in deleted and (pod.deleted or not workloads or waited_s > PASSED_ON_S):
                deleted.add(pod.uid)
                cluster.delete(_path(plan, pod), grace_s=grace_s if pod.started else 0)  # nothing to save before it ran
        time.sleep(POLL_S)
    # Ended pods may stay for a minute, until the kubelet has tidied up; nothing needs to wait for that.
    for pod in pods_of(cluster, plan):
        cluster.delete(_path(plan, pod), grace_s=0)
    # What the workload owned and the cluster has not collected, or that it left behind.
    ours = selector(plan.labels[RUN_LABEL])
    wanted = [(kind, ours) for kind in ("ConfigMap", "Secret", "Service")]
    if plan.claim is not None:
        wanted.append(("ResourceClaimTemplate", ours))
    if plan.kind == "pytorchjob":
        wanted.append(("Service", f"{_JOB_NAME}={plan.name}"))
    for kind, labels in wanted:
        base, plural = RESOURCES[kind]
        place = f"{base}/namespaces/{plan.namespace}/{plural}"
        for item in cluster.get(place, labelSelector=labels)["items"]:
            cluster.delete(f"{place}/{item['metadata']['name']}")


def pods_of(cluster: Cluster, plan: ClusterPlan) -> list[Pod]:
    """List all pods with the run's label, including those that are ending."""
    found = cluster.get(f"/api/v1/namespaces/{plan.namespace}/pods", labelSelector=selector(plan.labels[RUN_LABEL]))
    return [read_pod(item) for item in found["items"]]


def _path(plan: ClusterPlan, pod: Pod) -> str:
    return f"/api/v1/namespaces/{plan.namespace}/pods/{pod.name}"


def fetch(cluster: Cluster, plan: ClusterPlan, path: str, destination: Path) -> list[str]:
    """Copy a file or folder of /models, where ``path`` "" is all, and return the names of its files.

    Raises UsageError: no volume or no such path. EngineError: the helper pod does not start.
    """
    models = next((mount for mount in plan.mounts if mount.target == CONTAINER_MODELS), None)
    if models is None or not models.volume.lasting:
        message = "The run's models were in its pod and were deleted with it"
        raise UsageError(message, run="seatrial run … --models pvc:NAME")
    pods = f"/api/v1/namespaces/{plan.namespace}/pods"
    name = f"{plan.name}-cp-{int(time.time()) % 100000}"
    cluster.create(pods, copy_pod(plan, name))
    try:
        _wait(cluster, f"{pods}/{name}", name)
        with tempfile.TemporaryFile() as archive:
            errors = bytearray()
            argv = [plan.command[0], "-c", _PACK, CONTAINER_MODELS, path]
            packing = cluster.execute(plan.namespace, name, argv, archive.write, errors.extend, container=CONTAINER)
            if (code := cluster.call(packing)) != 0:
                why = errors.decode(errors="replace").strip() or f"exit code {code}"
                raise UsageError(f"/models of the run cannot be copied: {why}", run="seatrial runs cp RUN .")
            archive.seek(0)
            return _unpack(archive, destination)
    finally:
        cluster.delete(f"{pods}/{name}", grace_s=0)


def copy_pod(plan: ClusterPlan, name: str) -> Manifest:
    """Render the workload's own pod with its models mount alone and a command that waits; the node has its image."""
    spec = pod_spec(plan, CONTAINER)
    [container] = spec["containers"]
    mounts = [{**one, "readOnly": True} for one in container["volumeMounts"] if one["mountPath"] == CONTAINER_MODELS]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] == mounts[0]["name"]]
    kept = {key: container[key] for key in ("name", "image", "imagePullPolicy", "securityContext")}
    command = [plan.command[0], "-c", "import time; time.sleep(3600)"]
    spec["containers"] = [{**kept, "command": command, "volumeMounts": mounts}]
    spec.pop("resourceClaims", None)
    metadata = {"name": name, "namespace": plan.namespace, "labels": {MANAGED_BY: "seatrial"}}
    spec = {"restartPolicy": "Never", "activeDeadlineSeconds": 3600, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _wait(cluster: Cluster, path: str, name: str) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while (pod := cluster.get(path)["status"]).get("phase") != "Running":
        if pod.get("phase") == "Failed" or time.monotonic() > deadline_s:
            raise EngineError(f"The copy pod did not start: {pod.get('phase')}", run=f"kubectl describe pod {name}")
        time.sleep(0.3)


def _unpack(archive: object, destination: Path) -> list[str]:
    """Extract the archive below ``destination``, which no member may leave; return the names of its files."""
    with tarfile.open(fileobj=archive, mode="r") as tar:  # type: ignore[call-overload]
        members = [member for member in tar.getmembers() if member.isfile() or member.isdir()]
        root = destination.resolve()
        for member in members:
            member.mode &= 0o755  # no setuid programs from a pod
            if not (root / member.name).resolve().is_relative_to(root):
                raise EngineError(f"The archive contains a path outside its root: {member.name}")
        with os_errors(DiskError, f"Cannot write {destination}", f"df -h {as_typed(destination)}"):
            destination.mkdir(parents=True, exist_ok=True)
            safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.12, later patches before
            tar.extractall(destination, members, **safely)
        return sorted(member.name.removeprefix("./") for member in members if member.isfile())
