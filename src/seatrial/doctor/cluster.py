"""Read the facts of a Kubernetes cluster's GPUs once (extra ``k8s``), as plain objects."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.backends.kubernetes import client
from seatrial.backends.kubernetes.manifests import JOB_CONTAINER
from seatrial.backends.kubernetes.pod import MANAGED_BY, config_maps, described, pod_spec
from seatrial.backends.kubernetes.survey import read_pod
from seatrial.errors import EngineUnavailableError, SeatrialError, printable
from seatrial.job.cluster import POD_CONFIG, ClusterPlan, PodMount, Volume
from seatrial.job.in_container import CONTAINER_MODELS, RUN_LABEL
from seatrial.system.host import Host
from seatrial.system.project_files import own_table

#: Seconds for the first answer; a healthy cluster gives each in 0.1 s. All others get together what kr8s needs, which
#: signs in three times more after a refusal.
ANSWER_S, ANSWERS_S = 6.0, 18.0
#: kubelet and the scheduler name GPUs, and MIG slices under the strategy "mixed", under this prefix.
RESOURCE = "nvidia.com/"
#: NVIDIA's driver for Dynamic Resource Allocation, and its device class of whole GPUs.
DRA_DRIVER = "gpu.nvidia.com"
#: Paths of the lists that are read, Deployments of operators, and rights of a run.
TABLES = own_table(Path(__file__).with_suffix(".toml"))
#: Seconds for a pod to be scheduled, to pull an image that a node lacks, and to end.
TRY_S = 30.0
#: The pod reads the mounted file, writes to the volume, and ends with a code that no shell has by itself.
_FILE = f"{CONTAINER_MODELS}/.seatrial-try"
_PROGRAM = f"cat {POD_CONFIG}/plan.json && echo x > {_FILE} && rm {_FILE} && exit 43"
_EXIT_CODE = 43


class ClusterError(Exception):
    """The cluster could not be read; the text is one sentence. ``installable``: because kr8s is not installed."""

    def __init__(self, message: str, *, installable: bool = False) -> None:
        super().__init__(message)
        self.installable = installable


@dataclass(frozen=True)
class ClusterObjects:
    """Holds the API's objects that concern GPUs and runs.

    ``quotas``, ``labels``, ``rules``: of the namespace; rules are the user's rights, None if unknown. ``groups``: names
    of the APIs. ``unread``: fields that this user may not list.
    """

    server: str
    namespace: str = "default"
    nodes: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    runtime_classes: list[dict[str, Any]] = field(default_factory=list)
    slices: list[dict[str, Any]] = field(default_factory=list)
    device_classes: list[dict[str, Any]] = field(default_factory=list)
    deployments: list[dict[str, Any]] = field(default_factory=list)
    quotas: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    rules: list[dict[str, Any]] | None = None
    unread: tuple[str, ...] = ()

    def gpus(self, kind: str) -> dict[str, int]:
        """Return node → GPUs; ``kind`` is ``capacity`` or ``allocatable``. Nodes without the resource are left out."""
        return {
            str(node["metadata"]["name"]): sum(counts)
            for node in self.nodes
            for resources in [(node.get("status") or {}).get(kind) or {}]
            if (counts := [int(value) for name, value in resources.items() if name.startswith(RESOURCE)])
        }

    def claimable(self, kind: str) -> dict[str, int]:
        """Count a node's untainted ``gpu`` or ``mig`` devices in the newest slices. Source: k8s.io/api, resource/v1."""
        specs = [one["spec"] for one in self.slices if (one.get("spec") or {}).get("driver") == DRA_DRIVER]
        pools = [(spec["pool"]["name"], spec["pool"].get("generation", 0)) for spec in specs]
        newest, found = dict(sorted(pools)), Counter[str]()
        for spec, (pool, generation) in zip(specs, pools, strict=True):
            for listed in spec.get("devices") or () if generation == newest[pool] else ():
                device = {**listed, **(listed.get("basic") or {})}
                if (device.get("attributes") or {}).get("type", {}).get("string", "gpu") == kind:
                    usable = all(taint["effect"] == "None" for taint in device.get("taints") or ())
                    found[str(spec.get("nodeName") or device.get("nodeName") or "several nodes")] += usable
        return +found

    def requested(self) -> int:
        """Count the GPUs of pods that have a node and have not ended."""
        placed = (pod for pod in self.pods if (pod.get("spec") or {}).get("nodeName"))
        phases = ((pod, (pod.get("status") or {}).get("phase")) for pod in placed)
        return sum(pod_gpus(pod) for pod, phase in phases if phase in ("Pending", "Running"))


def pod_gpus(pod: Mapping[str, Any]) -> int:
    """Count the GPUs that a pod's containers request together."""
    containers = (pod.get("spec") or {}).get("containers") or []
    limits = [(one.get("resources") or {}).get("limits") or {} for one in containers]
    return sum(int(value) for limit in limits for name, value in limit.items() if name.startswith(RESOURCE))


def read(path: Path) -> ClusterObjects:
    """Read the cluster of a kubeconfig. What it lacks, or this user may not read, is empty. Raises ClusterError."""
    door, deadline = client.Cluster(Host({"KUBECONFIG": str(path)})), time.monotonic() + ANSWER_S
    unread: list[str] = []

    def get(path: str, name: str = "", **request: Any) -> dict[str, Any]:
        answer = door.submit(door.request(request.pop("method", "GET"), path, **request))
        try:
            found: dict[str, Any] = answer.result(max(0.1, deadline - time.monotonic()))
        except TimeoutError as error:
            answer.cancel()
            raise ClusterError(f"no answer to {path} within {ANSWER_S:g} s") from error
        except EngineUnavailableError as error:
            raise ClusterError(error.message, installable="kr8s" in error.message) from error
        except Exception as error:  # any error of signing in: httpx, TLS, a kubeconfig that is not YAML
            if isinstance(error, client.ApiError) and error.status in (403, 404):
                unread.extend([name] * (error.status == 403))
                return {}
            line = (str(error).strip() or "no message").splitlines()[0]
            ours = isinstance(error, SeatrialError)
            raise ClusterError(line if ours else f"{type(error).__name__}: {line}") from error
        return found

    groups = {one["name"]: one["preferredVersion"]["groupVersion"] for one in get("/apis").get("groups") or []}
    deadline = time.monotonic() + ANSWERS_S
    places = {"dra": groups.get("resource.k8s.io", "none"), "namespace": door.namespace}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    body = {**review, "spec": {"namespace": door.namespace}}
    rights = get(f"/apis/{review['apiVersion']}/selfsubjectrulesreviews", method="POST", body=body).get("status") or {}
    return ClusterObjects(
        server=printable(door.server),
        namespace=door.namespace,
        **{name: get(place.format(**places), name).get("items") or [] for name, place in TABLES["lists"].items()},
        labels=(get(f"/api/v1/namespaces/{door.namespace}").get("metadata") or {}).get("labels") or {},
        groups=tuple(groups),
        rules=None if rights.get("incomplete", True) else rights.get("resourceRules") or [],
        unread=tuple(unread),
    )


def try_pod(path: Path, image: str, models: Volume) -> str:
    """Run a pod like a run's and remove it; return what it has shown. Raises ClusterError with what has failed."""
    door, token, begin_s = client.Cluster(Host({"KUBECONFIG": str(path)})), secrets.token_hex(8), time.monotonic()
    plan = ClusterPlan(
        name=f"seatrial-{token}",
        kind="job",
        namespace=door.namespace,
        shm_bytes=1 << 20,
        image=image,
        command=("sh", "-c", _PROGRAM),
        workdir="/",
        mounts=(PodMount(volume=models, target=CONTAINER_MODELS),),
        uid=os.getuid() or 1000,
        labels={MANAGED_BY: "seatrial", RUN_LABEL: token},
    )
    [config] = config_maps(plan, {}, token)
    spec = {"restartPolicy": "Never", "activeDeadlineSeconds": round(2 * TRY_S), **pod_spec(plan, JOB_CONTAINER)}
    item = described(plan, "Pod", plan.name, spec=spec)
    folder = f"/api/v1/namespaces/{plan.namespace}"
    try:
        door.create(f"{folder}/configmaps", config)
        pod = read_pod(door.create(f"{folder}/pods", item))
        while not pod.ended and time.monotonic() - begin_s < TRY_S:
            time.sleep(0.3)
            pod = read_pod(door.get(f"{folder}/pods/{plan.name}"))
        log = door.call(_log(door, f"{folder}/pods/{plan.name}/log")).decode(errors="replace") if pod.started else ""
        events = door.get(f"{folder}/events", fieldSelector=f"involvedObject.name={plan.name},type=Warning")["items"]
    except SeatrialError as error:
        raise ClusterError(error.message) from error
    finally:
        for one in (f"pods/{plan.name}", f"configmaps/{config['metadata']['name']}"):
            with contextlib.suppress(SeatrialError):
                door.delete(f"{folder}/{one}", grace_s=0)
    if pod.exit_code == _EXIT_CODE and token in log:
        took = f"{time.monotonic() - begin_s:.1f} s"
        return f"{image} on {pod.host}: pulled, mounted, written, logged and ended in {took}"
    if pod.ended:
        problem = f"exit code {pod.exit_code}, not {_EXIT_CODE}: {log.replace(token, '').strip() or pod.message}"
        raise ClusterError(problem)
    words = [f"{one.get('reason')}: {one.get('message')}" for one in events]
    raise ClusterError(f"not started in {TRY_S:g} s: {max(words, key=len, default=pod.unschedulable or pod.phase)}")


async def _log(door: client.Cluster, path: str) -> bytes:
    return b"".join([line async for line in door.lines(path, container=JOB_CONTAINER)])
