"""A Job's demands on a cluster, which the ``[kubernetes]`` table of seatrial.toml has, and the pods of a Plan.

    [kubernetes]
    kind = "job"                              # job, jobset, pytorchjob, trainjob
    namespace = "team-a"
    data = "pvc:mnist"                        # pvc:NAME[/FOLDER], hostpath:/FOLDER, emptydir
    models = "pvc:models/alice"
    registry = "ghcr.io/me"
    tolerations = ["team=vision:NoSchedule"]  # KEY[=VALUE][:EFFECT]

    [kubernetes.node_selector]
    "nvidia.com/gpu.product" = "NVIDIA-H200"

On the command line volumes stand where folders do: ``--data pvc:mnist``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from seatrial.errors import SeatrialError
from seatrial.job.engine_grammar import is_host
from seatrial.job.keys import KeyTable, Listed, Matched, Typed, read_duration, text
from seatrial.job.units import parse_bytes
from seatrial.job.value import Value
from seatrial.system.text import regex, shown

#: job: Indexed Job. pytorchjob: Kubeflow v1. trainjob: Kubeflow v2.
#: jobset: a JobSet of one Indexed Job.
Kind = Literal["job", "jobset", "pytorchjob", "trainjob"]
CodeWay = Literal["image", "configmap", "none"]

#: Read-only folder of a pod with the agent, its plan and the contents of small files.
POD_CONFIG = "/seatrial/config"


class Volume(Value):
    """A volume of a cluster.

    Attributes:
        kind: ``pvc`` (a PersistentVolumeClaim's name), ``hostpath`` (a folder of the node) or ``emptydir``.
        value: name, absolute path, or "" for an emptyDir.
        path: folder inside the claim, "" for its root.
    """

    kind: Literal["pvc", "hostpath", "emptydir"]
    value: str = ""
    path: str = ""

    @property
    def lasting(self) -> bool:
        """Return whether it outlives the pod."""
        return self.kind != "emptydir"

    def __str__(self) -> str:
        inside = f"/{self.path}" if self.path else ""
        return f"{self.kind}:{self.value}{inside}" if self.value else self.kind


class Toleration(Value):
    """A taint that a pod puts up with; ``value`` None: any value; ``effect`` None: every effect."""

    key: str
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    def __str__(self) -> str:
        return f"{self.key}{'' if self.value is None else f'={self.value}'}{f':{self.effect}' if self.effect else ''}"


class PodMount(Value):
    """A volume at a path; ``sub_path`` is a folder or file inside it."""

    volume: Volume
    target: str
    sub_path: str = ""
    read_only: bool = False


class GpuClaim(Value):
    """Claim of each pod on GPUs, by Dynamic Resource Allocation.

    Attributes:
        device_class: NVIDIA's for whole GPUs or for MIG slices.
        profile: of the slices, such as ``1g.10gb``.
    """

    model_config = ConfigDict(extra="ignore")  # plans of earlier versions have ``api``

    device_class: str
    profile: str | None = None


class ClusterPlan(Value):
    """The workload, as every kind renders it. Of plans of earlier versions, keys that are gone are ignored.

    Attributes:
        name: of the workload and its other objects: a DNS label.
        gpus, cpus, memory_bytes: of each pod; requests equal limits. None: a small request and no limit.
        gpu_resource: the device plugin's name of them; claim: instead of it, a claim of as many devices.
        shm_bytes: of /dev/shm, which lies in the pod's memory; shm_requested: on top of the least memory requested.
        recipes: our wheel is mounted with the agent, for recipes in a ready image.
        code: how the project's code gets in. files: target path → text of a ConfigMap's file.
        uid: user, group and fsGroup.
        run_mount: where the run's folder lies when a volume keeps it, else None (an emptyDir).
        run_in_models: the run's folder is a folder of /models, for a kind that can mount a volume once.
        grace_s: between the kubelet's SIGTERM and SIGKILL.
        runtime: name of the ClusterTrainingRuntime, for ``trainjob``.
        queue: Kueue's LocalQueue that admits the workload, or None.
        own: the user's own workload, which is rendered as it is with the agent in its pods; None: ours.
        disruptions_free: a pod that the cluster itself evicts does not count as a restart (Kubernetes 1.26).
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    kind: Kind
    own: dict[str, Any] | None = None
    disruptions_free: bool = True
    context: str | None = None
    namespace: str = "default"
    nodes: int = 1
    min_nodes: int | None = None
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    claim: GpuClaim | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    requests: dict[str, str] = Field(default_factory=dict)
    shm_bytes: int
    shm_requested: bool = False
    image: str
    command: tuple[str, ...]
    workdir: str
    env: dict[str, str] = Field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    recipes: bool = False
    code: CodeWay = "none"
    files: dict[str, str] = Field(default_factory=dict)
    mounts: tuple[PodMount, ...] = ()
    run_mount: PodMount | None = None
    run_in_models: bool = False
    read_only_root: bool = True
    uid: int = 1000
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str | None = None
    runtime_class: str | None = None
    service_account: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    queue: str | None = None
    restarts: int = 0
    ttl_s: int = 24 * 3600
    grace_s: int = 40
    port: int = 29400
    runtime: str = "torch-distributed"
    labels: dict[str, str] = Field(default_factory=dict)


#: DNS-1123 subdomain: kubernetes.io/docs/concepts/overview/working-with-objects/names.
_OBJECT = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
#: The name of a queue is the value of a label: 63 characters.
_QUEUE = r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"
#: Host and optional namespace: github.com/distribution/reference, regexp.go; IPv6 addresses stand in brackets.
_REGISTRY = regex(
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
)
_TOLERATION = regex(r"^([^=:\s]+)(?:=([^:\s]*))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?$")


def parse_volume(text: Any) -> Volume:
    """Parse ``pvc:NAME[/FOLDER]``, ``hostpath:/FOLDER`` or ``emptydir``. Raises ValueError."""
    kind, _, value = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind == "emptydir" and not value:
        return Volume(kind="emptydir")
    if kind == "hostpath" and value.startswith("/") and ".." not in value.split("/"):
        return Volume(kind="hostpath", value=value.rstrip("/") or "/")
    if kind == "pvc":
        name, _, path = value.partition("/")
        if re.fullmatch(_OBJECT, name) and ".." not in path.split("/"):
            return Volume(kind="pvc", value=name, path=path.strip("/"))
    raise ValueError(f"expected pvc:NAME[/FOLDER], hostpath:/FOLDER or emptydir, got {shown(text)}")


def parse_toleration(text: Any) -> Toleration:
    """Parse ``KEY[=VALUE][:EFFECT]``. Raises ValueError."""
    match = _TOLERATION.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'expected KEY[=VALUE][:EFFECT] such as "nvidia.com/gpu:NoSchedule", got {shown(text)}')
    return Toleration(key=match[1], value=match[2], effect=match[3])  # type: ignore[arg-type]  # the pattern's words


def registry_host(reference: str) -> str | None:
    """Return an image reference's registry host; None: Docker Hub (github.com/distribution/reference, normalize.go)."""
    host, slash, _ = reference.partition("/")
    return host if slash and ("." in host or ":" in host or host == "localhost") else None


def parse_registry(text: Any) -> str:
    """Read ``HOST[:PORT][/NAMESPACE]``. Raises ValueError without the host: it would be an account on Docker Hub."""
    reference = text.removesuffix("/") if isinstance(text, str) else ""
    host = registry_host(f"{reference}/")
    if host is None or not _REGISTRY.fullmatch(reference):
        raise ValueError(f'expected HOST[:PORT]/NAMESPACE such as "ghcr.io/me" or "docker.io/me", got {shown(text)}')
    if host == reference and host.endswith("docker.io"):
        raise ValueError(f'{host} needs your account, as in "{host}/me"; got {shown(text)}')
    return reference


def parse_nodes(value: Any) -> int | tuple[str, ...]:
    """Parse a count, or the hosts of a run without a cluster: ``2`` or ``host1,host2``. Raises ValueError."""
    if (count := _number(value)) is not None and count >= 1:
        return count
    hosts = tuple(word.strip() for word in value.split(",")) if isinstance(value, str) else ()
    if hosts and all(is_host(host) for host in hosts):
        if len(set(hosts)) < len(hosts):
            raise ValueError(f"a host is named twice in {shown(value)}")
        return hosts
    raise ValueError(f"expected a number of nodes, or hosts such as host1,host2; got {shown(value)}")


def _number(value: Any) -> int | None:
    """Return a small whole number, also one as text, as flags are; None for any other value."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else None


def _whole(least: int) -> Any:
    def read(value: Any) -> int:
        if (number := _number(value)) is not None and number >= least:
            return number
        raise ValueError(f"expected a whole number of at least {least}, got {shown(value)}")

    return read


def parse_requests(value: Any) -> dict[str, str]:
    """Read ``{cpus = 4, memory = "16GB"}`` → requests as the API has them. Raises ValueError."""
    if not isinstance(value, Mapping) or not {"cpus", "memory"} >= value.keys():
        raise ValueError(f'expected cpus and memory, such as {{cpus = 4, memory = "16GB"}}, got {shown(value)}')
    try:
        cpus = {"cpu": f"{float(value['cpus']):g}"} if "cpus" in value else {}
        return {**cpus, **({"memory": str(parse_bytes(str(value["memory"])))} if "memory" in value else {})}
    except (SeatrialError, TypeError) as error:
        raise ValueError(str(error)) from None


VolumeText = Annotated[Volume, Typed(parse_volume, text("pvc:models", "hostpath:/data", "emptydir"))]
TolerationText = Annotated[Toleration, Typed(parse_toleration, text("nvidia.com/gpu:NoSchedule"))]
RegistryText = Annotated[str, Typed(parse_registry, text("ghcr.io/me"))]
ObjectName = Annotated[str, Matched(_OBJECT, "a Kubernetes name (lower-case letters, digits, - and .)")]
QueueName = Annotated[str, Matched(_QUEUE, "a LocalQueue's name (lower-case letters, digits, - and ., at most 63)")]
Restarts = Annotated[int, Typed(_whole(0), {"type": "integer", "minimum": 0})]
Nodes = Annotated[
    int | tuple[str, ...], Typed(parse_nodes, {"anyOf": [{"type": "integer", "minimum": 1}, text("host1,host2")]})
]


def _stored(old: Any, new: Any) -> BeforeValidator:
    """Read a value that plans of earlier versions contain; in seatrial.toml it is refused."""
    return BeforeValidator(lambda value, info: new if info.context is None and value == old else value)


class ClusterOptions(KeyTable):
    """Where and how a run is placed on a cluster."""

    kind: Annotated[Kind, _stored("auto", "job")] = Field(
        default="job", description="Workload kind: an Indexed Job, or what an operator runs."
    )
    runtime: ObjectName = Field(default="torch-distributed", description="ClusterTrainingRuntime of a TrainJob.")
    context: str | None = Field(default=None, description="Kubeconfig context; the current one by default.")
    namespace: ObjectName | None = Field(default=None, description="Namespace; the context's by default.")
    data: VolumeText | None = Field(default=None, description="Volume at /data: pvc:NAME[/FOLDER] or hostpath:/FOLDER.")
    models: VolumeText | None = Field(default=None, description="Volume at /models; also holds checkpoints.")
    code: Literal["auto", "image", "configmap"] = Field(default="auto", description="How the code gets into the pod.")
    registry: RegistryText | None = Field(
        default=None, description="Host and namespace that built images are pushed to: HOST[:PORT]/NAMESPACE."
    )
    gpu_resource: str = Field(default="nvidia.com/gpu", description="Resource name of a GPU or MIG slice.")
    gpu_claims: Annotated[bool, _stored(None, False)] = Field(
        default=False, description="Claim GPUs by Dynamic Resource Allocation."
    )
    node_selector: dict[str, str] = Field(default={}, description="Node labels that the pods require.")
    tolerations: Listed[TolerationText] = Field(default=(), description="Tolerated taints: KEY[=VALUE][:EFFECT].")
    priority_class: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    runtime_class: ObjectName | None = Field(default=None, description="RuntimeClass of the pods, such as nvidia.")
    queue: QueueName | None = Field(
        default=None, description="LocalQueue of Kueue that the workload waits in until there is quota."
    )
    service_account: ObjectName | None = Field(default=None, description="ServiceAccount of the pods.")
    image_pull_secrets: Listed[ObjectName] = Field(default=(), description="Secrets for pulling the image.")
    min_nodes: Annotated[int | None, Typed(_whole(1))] = Field(
        default=None, description="Elastic: minimum number of nodes to continue with."
    )
    ttl_s: Annotated[int, Typed(lambda value: int(read_duration(value)))] = Field(
        default=24 * 3600,
        validation_alias="ttl",
        description="Time after which the cluster deletes an ended workload that was not collected.",
    )
    uid: Annotated[int | None, Typed(_whole(1))] = Field(
        default=None, description="User and group of the pods; yours by default, 1000 for root."
    )
    requests: Annotated[dict[str, str], Typed(parse_requests, {"type": "object"})] = Field(
        default={}, description="Requests below the limits that cpus and memory are."
    )
    require_capacity: bool = Field(default=False, description="Refuse a run if no current node has the capacity.")


def volumes_apart(table: Mapping[str, Any]) -> dict[str, Any]:
    """Move ``data = "pvc:mnist"`` to ``kubernetes.data``: it is a cluster's volume, not a folder of this machine."""
    typed = {key: table[key] for key in ("data", "models") if isinstance(table.get(key), str)}
    if not (moved := {key: value for key, value in typed.items() if re.match(r"^(pvc:|hostpath:|emptydir$)", value)}):
        return dict(table)
    rest = {key: value for key, value in table.items() if key not in moved}
    return {**rest, "kubernetes": {**rest.get("kubernetes", {}), **moved}}
