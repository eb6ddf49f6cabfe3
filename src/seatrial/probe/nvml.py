"""Read this machine's GPUs and their users by NVML; without a driver ``inventory().error`` has the reason."""

import ctypes
import importlib
import re
from contextlib import suppress
from typing import Any, Iterator, List, NamedTuple, Optional, Tuple

from seatrial.probe.processes import file_bytes

#: A file for each GPU instance and compute instance, which names the minor number of its node in /dev/nvidia-caps.
#: Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/, "Device Nodes and Capabilities".
CAPABILITIES = "/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d"
#: Common failures of nvmlInit in the user's words. Source:
#: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html (nvmlReturn_t)
_INIT_FAILURES = {
    4: "NVML has no access to the GPUs: insufficient permissions on /dev/nvidia*",
    9: "the NVIDIA kernel driver is not loaded",
    12: "NVML is not available: libnvidia-ml.so.1 cannot be loaded (no NVIDIA driver, or it was not injected)",
    18: "the NVIDIA driver's library and kernel module have different versions (updated without a reboot)",
}
_LIBRARY_NOT_FOUND = 12
#: The driver's NVML: the name, or the path that this process loads it from.
library = "libnvidia-ml.so.1"
#: nvmlDeviceGetGpuFabricInfo's states. Source: nvml.h, NVML_GPU_FABRIC_STATE_*.
FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
FABRIC_COMPLETED = 3
#: Source: nvml.h, nvmlComputeMode_t.
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


def _slice_handles(pynvml: Any, handle: Any) -> Iterator[Tuple[int, Any]]:
    """Yield (number, handle) of each MIG slice of a GPU; none without MIG mode."""
    mode = optional(pynvml, "nvmlDeviceGetMigMode", handle)
    if mode and mode[0]:
        for number in range(optional(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            part = optional(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if part is not None:  # a slot without a slice
                yield number, part


def capability_nodes(part: "GpuFact", root: str = "") -> List[str]:
    """Return ``/dev/nvidia-caps/nvidia-capN`` of a slice's GPU instance and compute instance; [] if unknown."""
    if part.minor is None or part.gpu_instance is None or part.compute_instance is None:
        return []
    base = root + CAPABILITIES % (part.minor, part.gpu_instance)
    minors = [_minor(path) for path in (base + "/access", base + "/ci%d/access" % part.compute_instance)]
    return ["/dev/nvidia-caps/nvidia-cap%d" % minor for minor in minors if minor is not None]


def _minor(path: str) -> Optional[int]:
    match = re.search(rb"DeviceFileMinor:\s*(\d+)", file_bytes(path))
    return int(match.group(1)) if match else None


class NvmlError(Exception):
    """NVML is missing or failed; the text is one clear sentence."""


class GpuFact(NamedTuple):
    """A GPU, or MIG slice, as NVML reports it; what could not be read is None.

    ``index`` counts (parent) GPUs in PCI bus order. ``compute_mode`` is NVML's number, 0 = shared.
    A slice has ``mig`` = "GPU index:MIG index", ``parent_uuid`` and the numbers of its instances; its parent is
    listed too, ``mig_enabled``.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    uuid: str
    name: str
    memory_bytes: int
    memory_used_bytes: int
    utilization_pct: Optional[float] = None
    compute_capability: Optional[str] = None
    minor: Optional[int] = None
    mig: Optional[str] = None
    parent_uuid: Optional[str] = None
    compute_mode: Optional[int] = None
    pci_bus_id: Optional[str] = None
    mig_enabled: bool = False
    gpu_instance: Optional[int] = None
    compute_instance: Optional[int] = None


class Inventory(NamedTuple):
    """Everything NVML lists.

    ``cuda_driver_version`` is the newest CUDA the driver runs, "13.0". ``error`` is the reason if nothing could
    be read; ``faults`` are sentences about single GPUs that NVML counts but cannot open.
    """

    driver_version: Optional[str]
    cuda_driver_version: Optional[str]
    gpus: List[GpuFact]
    error: Optional[str] = None
    faults: List[str] = []  # noqa: RUF012


class ComputeProcess(NamedTuple):
    """A process with a CUDA context. ``pid`` is in the caller's namespace (seen in Docker); ``share_pct``: SM time."""

    pid: int
    memory_bytes: Optional[int]
    share_pct: Optional[float] = None


def present() -> bool:
    """Return whether the driver's NVML library can be loaded; pynvml then gets the same, by its name."""
    with suppress(OSError):
        return ctypes.CDLL(library) is not None
    return False


def load(pynvml: Any = None) -> Any:
    """Return pynvml with NVML initialised; without the library pynvml (0.15 s) is not imported. Raises NvmlError."""
    if pynvml is None:
        if not present():
            raise NvmlError(_INIT_FAILURES[_LIBRARY_NOT_FOUND])
        pynvml = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlError(_INIT_FAILURES.get(error.value, "NVML failed to start: %s" % error)) from None
    return pynvml


def inventory(pynvml: Any = None) -> Inventory:
    """Return every GPU and MIG slice. Never raises for a driver that is missing or broken."""
    try:
        pynvml = load(pynvml)
    except NvmlError as error:
        return Inventory(None, None, [], error=str(error))
    gpus: List[GpuFact] = []
    faults: List[str] = []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        return Inventory(None, None, [], error="NVML failed: %s" % error)
    for index in range(count):
        try:
            gpus.extend(_gpu_and_slices(pynvml, index))
        except pynvml.NVMLError as error:
            faults.append("GPU %d cannot be read: %s" % (index, error))
    return Inventory(driver, "%d.%d" % (cuda // 1000, cuda % 1000 // 10), gpus, faults=faults)


def compute_processes(uuid: str) -> List[ComputeProcess]:
    """Return the processes with a CUDA context on this GPU or slice. Raises NvmlError."""
    pynvml = load()
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError as error:
        raise NvmlError("NVML cannot list the processes on %s: %s" % (uuid, error)) from None
    return [ComputeProcess(process.pid, process.usedGpuMemory) for process in found]


def optional(pynvml: Any, function: str, *arguments: Any) -> Any:
    """Return a function's value, or None if this GPU or driver does not have it. A lost GPU still raises."""
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None


def _gpu_and_slices(pynvml: Any, index: int) -> List[GpuFact]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig_mode = optional(pynvml, "nvmlDeviceGetMigMode", handle)
    capability = optional(pynvml, "nvmlDeviceGetCudaComputeCapability", handle)
    pci = optional(pynvml, "nvmlDeviceGetPciInfo", handle)
    common = {
        "compute_capability": "%d.%d" % tuple(capability) if capability else None,
        "minor": optional(pynvml, "nvmlDeviceGetMinorNumber", handle),
        "compute_mode": optional(pynvml, "nvmlDeviceGetComputeMode", handle),
        "pci_bus_id": pci.busId if pci else None,
    }
    parent = _fact(pynvml, handle, index)._replace(mig_enabled=bool(mig_mode and mig_mode[0]), **common)
    slices = [
        _fact(pynvml, part, index)._replace(
            mig="%d:%d" % (index, number),
            parent_uuid=parent.uuid,
            **common,
            gpu_instance=optional(pynvml, "nvmlDeviceGetGpuInstanceId", part),
            compute_instance=optional(pynvml, "nvmlDeviceGetComputeInstanceId", part),
        )
        for number, part in _slice_handles(pynvml, handle)
    ]
    return [parent, *slices]


def _fact(pynvml: Any, handle: Any, index: int) -> GpuFact:
    memory = optional(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    utilization = optional(pynvml, "nvmlDeviceGetUtilizationRates", handle)
    return GpuFact(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=memory.total if memory else 0,
        memory_used_bytes=memory.used if memory else 0,
        utilization_pct=float(utilization.gpu) if utilization else None,
    )


class GpuHealth(NamedTuple):
    """The facts that one GPU reports of itself; None if driver or chip does not.

    ``processes`` and ``processes_bytes`` are those with a CUDA context that NVML shows to this PID namespace.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    uuid: str
    name: str
    persistence: Optional[bool] = None
    compute_mode: Optional[int] = None
    power_limit_w: Optional[float] = None
    power_default_w: Optional[float] = None
    mig_current: Optional[bool] = None
    mig_pending: Optional[bool] = None
    mig_instances: int = 0
    fabric_state: Optional[int] = None
    fabric_status: Optional[int] = None
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    processes_bytes: int = 0
    processes: int = 0


def read_health(pynvml: Any) -> List[GpuHealth]:
    """Return every GPU that NVML can open. ``pynvml`` is initialised; ``inventory`` names lost ones."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError):
            found.append(_health(pynvml, index))
    return found


def _health(pynvml: Any, index: int) -> GpuHealth:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig = optional(pynvml, "nvmlDeviceGetMigMode", handle)
    memory = optional(pynvml, "nvmlDeviceGetMemoryInfo", handle)
    processes = optional(pynvml, "nvmlDeviceGetComputeRunningProcesses", handle) or []
    fabric = _fabric(pynvml, handle)
    persistence = optional(pynvml, "nvmlDeviceGetPersistenceMode", handle)
    limit_mw = optional(pynvml, "nvmlDeviceGetPowerManagementLimit", handle)
    default_mw = optional(pynvml, "nvmlDeviceGetPowerManagementDefaultLimit", handle)
    return GpuHealth(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        persistence=None if persistence is None else bool(persistence),
        compute_mode=optional(pynvml, "nvmlDeviceGetComputeMode", handle),
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
        power_default_w=None if default_mw is None else default_mw / 1000,
        mig_current=bool(mig[0]) if mig else None,
        mig_pending=bool(mig[1]) if mig else None,
        mig_instances=sum(1 for _ in _slice_handles(pynvml, handle)),
        fabric_state=fabric[0],
        fabric_status=fabric[1],
        memory_bytes=memory.total if memory else 0,
        memory_used_bytes=memory.used if memory else 0,
        processes_bytes=sum(process.usedGpuMemory or 0 for process in processes),
        processes=len(processes),
    )


def _fabric(pynvml: Any, handle: Any) -> Tuple[Optional[int], Optional[int]]:
    """Return (state, status) of the NVLink fabric; (None, None) on GPUs without one and drivers before 525."""
    if hasattr(pynvml, "nvmlDeviceGetGpuFabricInfo"):
        info = pynvml.c_nvmlGpuFabricInfo_t()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
            return info.state, info.status
    return None, None
