"""Read the GPUs that a service requests, in each of the ways that Compose files have for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seatrial.compose.read import ComposeFile
from seatrial.compose.service import Service
from seatrial.errors import GpuRequestError
from seatrial.job.gpu_request import CAPABILITIES, GpuRequest
from seatrial.planning.container.plan import GPU_DEVICE
from seatrial.system.text import as_typed

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


@dataclass(frozen=True)
class GpuAsk:
    """Holds the GPUs that a service requests.

    Attributes:
        ways: the file's ways to request them; the first counts.
        compute_added: its capabilities left CUDA out, which the request has all the same.
    """

    request: GpuRequest
    ways: tuple[Way, ...]
    compute_added: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Return the key of the request, within the service."""
        return _PATHS[self.ways[0]]


def gpu_ask(file: ComposeFile, service: Service) -> GpuAsk | None:
    """Return the request; None if there is none. Raises GpuRequestError with the line of a wrong one."""
    found: dict[Way, tuple[str, tuple[str, ...]]] = {}
    reserved = _nvidia(value_at(service.config, RESERVED))
    if reserved:
        found["deploy"] = _of_requests(reserved)
    if short := _nvidia(_short(service)):
        found["gpus"] = _of_requests(short)
    wanted, runtime = _of_variable(service), service.config.get("runtime")
    if runtime == "nvidia" and wanted is not None:
        found["runtime"] = wanted
    if named := _of_devices(service.config.get("devices") or ()):
        found["devices"] = (named, ())
    if not found and runtime is None and wanted is not None and "NVIDIA_VISIBLE_DEVICES" in service.environment:
        found["environment"] = wanted
    if not found:
        return None
    what, capabilities = next(iter(found.values()))
    names = [name for name in capabilities if name in CAPABILITIES]
    added = bool(names) and not {"compute", "all"} & set(names)
    if names:
        what += ",capabilities=" + ",".join(["compute", *names] if added else names)
    ask = GpuAsk(GpuRequest("all"), tuple(found), added)
    try:
        return GpuAsk(GpuRequest.parse(what), ask.ways, added)
    except GpuRequestError as error:
        place = file.place(service.name, *ask.path)
        unset = f"not set, and so empty: {', '.join(file.unset)}" if file.unset else None
        raise GpuRequestError(
            f"{place}: {service.name}: {error.message}",
            cause=error.cause or unset,
            run=f"export {file.unset[0]}=…" if file.unset else f"sed -n {place.line}p {as_typed(place.file)}",
        ) from None


def value_at(config: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return what a configuration has below these keys; () where that is nothing."""
    value: Any = config
    for key in path:
        value = (value or {}).get(key)
    return value or ()


def foreign_ask(service: Service) -> tuple[str, ...] | None:
    """Return the key that requests another maker's accelerator, which stays Compose's whole; None without one."""
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


def _nvidia(requests: Any) -> list[Mapping[str, Any]]:
    """Return the requests for NVIDIA's GPUs; others stay Compose's."""
    return [each for each in requests if is_nvidias(each)]


def is_nvidias(request: Mapping[str, Any]) -> bool:
    """Return True if a device request is for NVIDIA's GPUs."""
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


def _of_variable(service: Service) -> tuple[str, tuple[str, ...]] | None:
    """Return the request in the variables that NVIDIA's runtime reads; without them every GPU."""
    environment = service.environment
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "all").strip().lower()
    if visible in ("", "none", "void"):
        return None
    capabilities = tuple(filter(None, environment.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")))
    names = [_plain(name.strip()) for name in environment.get("NVIDIA_VISIBLE_DEVICES", "all").split(",")]
    return ("all" if "all" in names else "device=" + ",".join(names)), capabilities


def _of_devices(devices: Sequence[Any]) -> str | None:
    """Return the request for the GPUs among ``devices:``, CDI names or device nodes; None if there are none."""
    sources = [str(each.get("source")) if isinstance(each, dict) else str(each).partition(":")[0] for each in devices]
    names = [_plain(source) for source in sources if GPU_DEVICE.match(source) and "=" in source]
    names += [match[1] for source in sources if (match := _NODE.match(source))]
    if not names:
        return None
    return "all" if "all" in names else "device=" + ",".join(dict.fromkeys(names))


def _plain(name: str) -> str:
    """Return ``0`` of ``nvidia.com/gpu=0``."""
    return name.rpartition("=")[2]
