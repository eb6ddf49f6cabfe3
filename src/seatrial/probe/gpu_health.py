"""Modes, limits and state of each GPU that decide whether CUDA can use it; through NVML, which any user may ask."""

import ctypes
from typing import Any, List, NamedTuple, Optional, Tuple

from seatrial.probe.nvml import optional

#: nvmlDeviceGetGpuFabricInfo's states. Source: nvml.h, NVML_GPU_FABRIC_STATE_*.
FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
FABRIC_COMPLETED = 3

#: Source: nvml.h, nvmlComputeMode_t.
COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


class GpuHealth(NamedTuple):
    """Hold what one GPU reports of itself; None if driver or chip does not.

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


def read(pynvml: Any) -> List[GpuHealth]:
    """Every GPU that NVML can open. ``pynvml`` is initialised; a lost GPU is left out (nvml.inventory names it)."""
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            found.append(_one(pynvml, index))
        except pynvml.NVMLError:
            continue
    return found


def _one(pynvml: Any, index: int) -> GpuHealth:
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
        mig_instances=_instances(pynvml, handle) if mig and mig[0] else 0,
        fabric_state=fabric[0],
        fabric_status=fabric[1],
        memory_bytes=memory.total if memory else 0,
        memory_used_bytes=memory.used if memory else 0,
        processes_bytes=sum(process.usedGpuMemory or 0 for process in processes),
        processes=len(processes),
    )


def _instances(pynvml: Any, handle: Any) -> int:
    slots = optional(pynvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    return sum(
        optional(pynvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number) is not None for number in range(slots)
    )


def _fabric(pynvml: Any, handle: Any) -> Tuple[Optional[int], Optional[int]]:
    """(state, status) of the NVLink fabric; (None, None) on GPUs without one and drivers before 525."""
    if not hasattr(pynvml, "nvmlDeviceGetGpuFabricInfo"):
        return None, None
    info = pynvml.c_nvmlGpuFabricInfo_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    except pynvml.NVMLError:
        return None, None
    return info.state, info.status
