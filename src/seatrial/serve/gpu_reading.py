"""What NVML says of the GPUs that this container sees; nothing where it cannot be read.

``seatrial.probe`` has the one full reader, on the host's and the agent's side; here two numbers are enough.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

#: A reading is kept for so long: scrapes do not make the driver work.
_FRESH_S = 1.0


@dataclass(frozen=True)
class GpuReading:
    """One GPU now."""

    uuid: str
    utilization_pct: float
    memory_used_bytes: int


class Gpus:
    """Reads them when asked."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._opened = False
        self._read_s = float("-inf")
        self._kept: list[GpuReading] = []

    def read(self) -> list[GpuReading]:
        """At most a second old; empty where there is no GPU, no driver or no pynvml."""
        if not self._opened:
            self._opened, self._nvml = True, _open()
        if self._nvml is not None and time.monotonic() - self._read_s > _FRESH_S:
            self._read_s = time.monotonic()
            self._kept = self._read()
        return self._kept

    def _read(self) -> list[GpuReading]:
        nvml, found = self._nvml, []
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                device = nvml.nvmlDeviceGetHandleByIndex(index)
                utilization = nvml.nvmlDeviceGetUtilizationRates(device).gpu
                used = nvml.nvmlDeviceGetMemoryInfo(device).used
                found.append(GpuReading(nvml.nvmlDeviceGetUUID(device), float(utilization), int(used)))
        except nvml.NVMLError:
            return []
        return found


def _open() -> Any:
    """The module, which has no types, or None."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 — not installed, no driver, no library: metrics without GPUs
        return None
    return pynvml
