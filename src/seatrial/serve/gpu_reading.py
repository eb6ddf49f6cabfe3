"""What NVML says of the GPUs that this container sees; nothing where it cannot be read.

By its C interface: images for serving carry no nvidia-ml-py, and of what ``seatrial.probe`` reads, which is not in them
either, two numbers are enough here. Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

#: A reading is kept for so long: scrapes do not make the driver work.
_FRESH_S = 1.0
#: NVML_DEVICE_UUID_V2_BUFFER_SIZE.
_UUID_BYTES = 96


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(frozen=True)
class GpuReading:
    """One GPU now."""

    uuid: str
    utilization_pct: float
    memory_used_bytes: int


class Gpus:
    """Reads them when asked."""

    def __init__(self) -> None:
        self._nvml: ctypes.CDLL | None = None
        self._opened = False
        self._read_s = float("-inf")
        self._kept: list[GpuReading] = []

    def read(self) -> list[GpuReading]:
        """At most a second old; empty where there is no GPU or no driver."""
        if not self._opened:
            self._opened, self._nvml = True, _open()
        if self._nvml is not None and time.monotonic() - self._read_s > _FRESH_S:
            self._read_s = time.monotonic()
            self._kept = _read(self._nvml)
        return self._kept


def _open() -> ctypes.CDLL | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        return nvml if nvml.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _read(nvml: ctypes.CDLL) -> list[GpuReading]:
    """GPUs that answer every question."""
    count, found = ctypes.c_uint(), []
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    for index in range(count.value):
        device, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        utilization, memory = _Utilization(), _Memory()
        failed = (
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
            or nvml.nvmlDeviceGetUUID(device, uuid, _UUID_BYTES)
            or nvml.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization))
            or nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        )
        if not failed:
            found.append(GpuReading(uuid.value.decode("ascii", "replace"), float(utilization.gpu), memory.used))
    return found
