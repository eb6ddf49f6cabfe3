"""ClusterOptions: the ``[kubernetes]`` table of seatrial.toml.

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

from pydantic import BeforeValidator, Field

from seatrial.errors import SeatrialError
from seatrial.job.cluster import Kind, Toleration, Volume
from seatrial.job.engine_grammar import is_host
from seatrial.job.keys import KeyTable, Listed, Matched, Typed, read_duration, text
from seatrial.job.units import parse_bytes
from seatrial.system.text import shown

#: DNS-1123 subdomain: kubernetes.io/docs/concepts/overview/working-with-objects/names.
_OBJECT = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
#: The name of a queue is the value of a label: 63 characters.
_QUEUE = r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"
_WHOLE = re.compile(r"[0-9]{1,9}")
_VOLUME = re.compile(r"^(pvc:|hostpath:|emptydir$)")
#: Host and optional namespace: github.com/distribution/reference, regexp.go; IPv6 addresses stand in brackets.
_REGISTRY = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
)
_TOLERATION = re.compile(r"^([^=:\s]+)(?:=([^:\s]*))?(?::(NoSchedule|PreferNoSchedule|NoExecute))?$")


def parse_volume(text: Any) -> Volume:
    """``pvc:NAME[/FOLDER]``, ``hostpath:/FOLDER`` or ``emptydir``. Raises ValueError."""
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
    """``KEY[=VALUE][:EFFECT]``. Raises ValueError."""
    match = _TOLERATION.match(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f'expected KEY[=VALUE][:EFFECT] such as "nvidia.com/gpu:NoSchedule", got {shown(text)}')
    return Toleration(key=match[1], value=match[2], effect=match[3])  # type: ignore[arg-type]  # the pattern's words


def registry_host(reference: str) -> str | None:
    """Return the registry's host in an image reference, or None where an engine would take Docker Hub's.

    Source: github.com/distribution/reference, normalize.go, splitDockerDomain.
    """
    host, slash, _ = reference.partition("/")
    named = "." in host or ":" in host or host == "localhost"
    return host if slash and named else None


def parse_registry(text: Any) -> str:
    """Read ``HOST[:PORT][/NAMESPACE]``. Raises ValueError where the host is left out.

    Without a host an engine pushes to Docker Hub, so ``registry = "me"`` would name an account there.
    """
    reference = text.removesuffix("/") if isinstance(text, str) else ""
    host = registry_host(f"{reference}/")
    if host is None or not _REGISTRY.fullmatch(reference):
        raise ValueError(f'expected HOST[:PORT]/NAMESPACE such as "ghcr.io/me" or "docker.io/me", got {shown(text)}')
    if host == reference and host.endswith("docker.io"):
        raise ValueError(f'{host} needs your account, as in "{host}/me"; got {shown(text)}')
    return reference


def parse_nodes(value: Any) -> int | tuple[str, ...]:
    """A count, or the hosts of a run without a cluster: ``2`` or ``host1,host2``. Raises ValueError."""
    if (count := _number(value)) is not None and count >= 1:
        return count
    hosts = tuple(word.strip() for word in value.split(",")) if isinstance(value, str) else ()
    if hosts and all(is_host(host) for host in hosts):
        if len(set(hosts)) < len(hosts):
            raise ValueError(f"a host is named twice in {shown(value)}")
        return hosts
    raise ValueError(f"expected a number of nodes, or hosts such as host1,host2; got {shown(value)}")


def _number(value: Any) -> int | None:
    """Return a whole number that is small, also as text: flags are text."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**9:
        return value
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else None


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
    int | tuple[str, ...],
    Typed(parse_nodes, {"anyOf": [{"type": "integer", "minimum": 1}, text("host1,host2")]}),
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
    """``data = "pvc:mnist"`` as ``kubernetes.data``: a cluster's volume, not a folder of this machine."""
    moved = {
        key: table[key] for key in ("data", "models") if isinstance(table.get(key), str) and _VOLUME.match(table[key])
    }
    if not moved:
        return dict(table)
    rest = {key: value for key, value in table.items() if key not in moved}
    return {**rest, "kubernetes": {**rest.get("kubernetes", {}), **moved}}
