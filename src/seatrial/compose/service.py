"""Service: one service as Compose has resolved it, a task or a server, and its GPU requests in any form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from seatrial.backends.base import ImageFacts
from seatrial.job.gpu_request import CAPABILITIES, GpuRequest
from seatrial.planning.container.plan import GPU_DEVICE
from seatrial.system.project_files import as_table

#: Commands that serve until they are stopped. A guess counts only where the file itself has no sign.
_SERVERS = re.compile(
    r"(?<![\w-])(uvicorn|gunicorn|hypercorn|daphne|flask|streamlit|gradio|tensorboard|jupyter|jupyter-lab|nginx|"
    r"redis(-server)?|postgres|mysqld?|mariadb|mongod?|rabbitmq|minio|elasticsearch|kafka|zookeeper|memcached|qdrant|"
    r"chroma|caddy|traefik|prometheus|celery|triton|tritonserver|torchserve|vllm|ollama|"
    r"http\.server|runserver|serve(r)?(\.py)?)(?![\w-])"
)
_SERVES = re.compile(r"\b(mlflow (ui|server)|ray start|tail -f|sleep (inf(inity)?|\d{5,})|while true|airflow \w+)\b")
#: The condition of depends_on that waits for an end.
COMPLETED = "service_completed_successfully"

_SHELL = re.compile(r"(^|/)(ba|z|da|k)?sh$")
#: Programs that display files while others write them: after the end they would have no use.
_WATCHERS = re.compile(
    r"tensorboard|mlflow|grafana|prometheus|jupyter|aim|wandb|visdom|filebrowser|code-server|nginx|caddy|traefik|httpd"
)
#: Facts of an absent image.
_UNKNOWN = ImageFacts("", None)
#: deploy: …reservations.devices. gpus: the short key of Compose 2.30. runtime: nvidia. devices: CDI names or nodes.
#: environment: NVIDIA_VISIBLE_DEVICES alone, which is enough where nvidia is Docker's default runtime.
Way = Literal["deploy", "gpus", "runtime", "devices", "environment"]

RESERVED = ("deploy", "resources", "reservations", "devices")
_PATHS: dict[Way, tuple[str, ...]] = {
    "deploy": RESERVED,
    "gpus": ("gpus",),
    "runtime": ("runtime",),
    "devices": ("devices",),
    "environment": ("environment", "NVIDIA_VISIBLE_DEVICES"),
}

#: A GPU's node.
_NODE = re.compile(r"/dev/nvidia(\d+)$")
#: Nodes of other makers' accelerators: AMD's kfd, Huawei's davinci, Intel's Gaudi and TPUs (accel), CDI names.
_FOREIGN = re.compile(r"/dev/(kfd|davinci|accel|hl\d)|(amd|intel)\.com/gpu=")

_FOREIGN_RUNTIMES = ("amd", "habana", "ascend")


class ServiceMount(NamedTuple):
    """A mount of a service: ``volume`` (``source``: its key), ``bind`` (its folder on the host) or another kind."""

    kind: str
    source: str
    target: str
    read_only: bool

    @property
    def shared(self) -> bool:
        """Return True if the mount can be another service's as well."""
        return self.kind in ("volume", "bind") and bool(self.source)


@dataclass(frozen=True)
class Service:
    """One service.

    Attributes:
        config: its part of ``docker compose config``, with ``$$`` read as one dollar.
        image: what is run; of one that is built, the name that Compose gives the result. facts: None if it is absent.
        by_path: what is mounted by a path of this machine.
        awaited: another service waits for its successful end, so that it has one.
    """

    name: str
    config: Mapping[str, Any]
    image: str
    facts: ImageFacts | None = None
    awaited: bool = False
    by_path: tuple[ServiceMount, ...] = ()

    @property
    def build(self) -> Mapping[str, Any] | None:
        return self.config.get("build")

    @property
    def context(self) -> Path | None:
        """Return the local folder that the image is built from; None if there is none."""
        context = (self.build or {}).get("context")
        return Path(context) if context and "://" not in context and not context.startswith("git@") else None

    @property
    def environment(self) -> dict[str, str]:
        values = as_table(self.config, "environment")
        return {name: "" if value is None else str(value) for name, value in values.items()}

    @property
    def depends_on(self) -> dict[str, str]:
        """Return service → the condition on which this one waits for it."""
        return {name: str(each.get("condition")) for name, each in as_table(self.config, "depends_on").items()}

    @cached_property
    def volumes(self) -> tuple[ServiceMount, ...]:
        found = []
        for each in self.config.get("volumes") or ():
            source, target = str(each.get("source") or ""), str(each.get("target"))
            found.append(ServiceMount(str(each.get("type")), source, target, bool(each.get("read_only"))))
        return tuple(found)

    @property
    def user(self) -> str:
        """Return the user's name or number, without the group; "root" if neither file nor image has one."""
        return str(self.config.get("user") or (self.facts or _UNKNOWN).user).partition(":")[0] or "root"

    @property
    def ports(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self.config.get("ports") or ())

    @property
    def replicas(self) -> int:
        count = self.config.get("scale", as_table(self.config, "deploy").get("replicas", 1))
        return 1 if count is None else int(count)

    @property
    def words(self) -> str:
        """Return image and command in one text, for guesses."""
        return " ".join([self.image.rpartition("/")[2], *self.argv])

    @property
    def argv(self) -> tuple[str, ...]:
        """Return the command of the container, from entrypoint and command of file and image as an engine does."""
        image, entrypoint, command = self.facts or _UNKNOWN, self.config.get("entrypoint"), self.config.get("command")
        if command is None:
            command = image.cmd if entrypoint is None else ()
        words = (*(image.entrypoint if entrypoint is None else entrypoint), *command)
        return tuple(str(word) for word in words if word is not None)

    @property
    def watches(self) -> bool:
        """Return True if the service shows what others are writing, by the words of its image and command."""
        return _WATCHERS.search(self.words.lower()) is not None

    @property
    def why_service(self) -> str | None:
        """Return why the service does not end by itself; None for a task."""
        if self.awaited:
            return None
        restart = self.config.get("restart") or ""
        condition = as_table(self.config, "deploy").get("restart_policy", {}) or {}
        checks = as_table(self.config, "healthcheck")
        image = self.facts or _UNKNOWN
        signs = {
            "it publishes ports": self.ports,
            "it exposes ports": self.config.get("expose") or image.ports,
            "it has a health check": (checks and not checks.get("disable")) or image.health_check,
            f"it has restart: {restart}": restart in ("always", "unless-stopped"),
            "it has a restart policy": condition.get("condition") == "any",
            "it keeps a terminal open": self._keeps_a_terminal,
        }
        found = next((why for why, so in signs.items() if so), None)
        if found is not None or restart.startswith("on-failure"):
            return found
        words = self.words
        serving = _SERVES.search(words.lower()) or _SERVERS.search(words.lower())
        return f'its command is a server\'s ("{serving[0]}")' if serving else None

    @property
    def _keeps_a_terminal(self) -> bool:
        """Return True for a shell to attach to; people set tty on training as well, for its colours."""
        if not (self.config.get("tty") or self.config.get("stdin_open")):
            return False
        words = self.config.get("command") or self.config.get("entrypoint") or ()
        return not words or (len(words) == 1 and _SHELL.search(str(words[0])) is not None)

    @property
    def is_task(self) -> bool:
        """Return True if the service ends by itself."""
        return self.why_service is None


@dataclass(frozen=True)
class GpuAsk:
    """Holds the GPUs that a service requests; of several ``ways`` the first counts.

    ``compute_added``: its capabilities left CUDA out, which the request has all the same.
    """

    request: GpuRequest
    ways: tuple[Way, ...]
    compute_added: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Return the key of the request, within the service."""
        return _PATHS[self.ways[0]]


def gpu_ways(service: Service) -> dict[Way, tuple[str, tuple[str, ...]]]:
    """Map each way in which the file requests GPUs to (our form, capabilities); the first one counts."""
    variable, runtime = _of_variable(service.environment), service.config.get("runtime")
    found: dict[Way, list[Mapping[str, Any]]] = {
        "deploy": [each for each in value_at(service.config, RESERVED) if is_nvidias(each)],
        "gpus": [each for each in _short(service) if is_nvidias(each)],
        "runtime": variable if runtime == "nvidia" else [],
        "devices": _of_devices(service.config.get("devices") or ()),
    }
    if not any(found.values()) and runtime is None and "NVIDIA_VISIBLE_DEVICES" in service.environment:
        found["environment"] = variable
    return {way: _of_requests(requests) for way, requests in found.items() if requests}


def value_at(config: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the value of a configuration below these keys; () if there is none."""
    value: Any = config
    for key in path:
        value = (value or {}).get(key)
    return value or ()


def foreign_ask(service: Service) -> tuple[str, ...] | None:
    """Return the key that requests another maker's accelerator, left to Compose; None if there is none."""
    if any(not is_nvidias(each) for each in value_at(service.config, RESERVED)):
        return RESERVED
    if any(not is_nvidias(each) for each in _short(service)):
        return ("gpus",)
    if service.config.get("runtime") in _FOREIGN_RUNTIMES:
        return ("runtime",)
    nodes = [each.get("source") if isinstance(each, dict) else each for each in service.config.get("devices") or ()]
    found = next((str(node) for node in nodes if _FOREIGN.match(str(node))), None)
    return ("devices", found) if found else None


def _short(service: Service) -> list[Mapping[str, Any]]:
    """Return the requests of the key ``gpus:``, each with the capability that Compose adds: it is for GPUs."""
    requests = service.config.get("gpus") or ()
    return [{**each, "capabilities": [*(each.get("capabilities") or ()), "gpu"]} for each in requests]


def is_nvidias(request: Mapping[str, Any]) -> bool:
    """Return True if a device request is for NVIDIA's GPUs; others stay Compose's."""
    driver = request.get("driver") or ""
    wants = {"gpu", "nvidia", *CAPABILITIES} & set(request.get("capabilities") or ())
    names = [str(name) for name in request.get("device_ids") or ()]
    if driver == "cdi":
        return all(GPU_DEVICE.match(name) for name in names)
    return driver == "nvidia" or (not driver and bool(wants))


def _of_requests(requests: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, ...]]:
    """Return (request in our words, capabilities). Requests add up; without a count or names one means all."""
    names = [_plain(str(name)) for each in requests for name in each.get("device_ids") or ()]
    capabilities = tuple(str(name) for each in requests for name in each.get("capabilities") or ())
    if "all" in names:
        return "all", capabilities
    if names:
        return "device=" + ",".join(names), capabilities
    counts = [each.get("count") for each in requests]
    if any(count in (None, -1, "-1", "all", 0, "0") for count in counts):
        return "all", capabilities
    return str(sum(int(count) for count in counts if count is not None)), capabilities


def _of_variable(environment: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return the request in the variables that NVIDIA's runtime reads; without them every GPU."""
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "all")
    if visible.strip().lower() in ("", "none", "void"):
        return []
    capabilities = list(filter(None, environment.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")))
    return [{"device_ids": [name.strip() for name in visible.split(",")], "capabilities": capabilities}]


def _of_devices(devices: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the request for the GPUs among ``devices:``, CDI names or device nodes."""
    sources = [str(each.get("source")) if isinstance(each, dict) else str(each).partition(":")[0] for each in devices]
    names = [_plain(source) for source in sources if GPU_DEVICE.match(source) and "=" in source]
    names += [match[1] for source in sources if (match := _NODE.match(source))]
    return [{"device_ids": list(dict.fromkeys(names))}] if names else []


def _plain(name: str) -> str:
    """Return ``0`` of ``nvidia.com/gpu=0``."""
    return name.rpartition("=")[2]
