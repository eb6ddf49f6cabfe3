"""GPM: what the SMs, tensor cores and memory of a Hopper (or later) GPU did between two samples.

Needs no root and no DCGM. Measured on an H200: 0.05 ms to take a sample, about 0.9 ms to compare two.
"""

import time
from typing import Any, Dict, Optional

from seatrial.probe.nvml import optional

#: Key of a sample → (NVML's metric number, its unit in ours); throughput is in MiB/s.
#: Source: nvml.h, nvmlGpmMetricId_t.
GPM_METRICS = {
    "graphics_activity_pct": (1, 1.0),
    "sm_activity_pct": (2, 1.0),
    "sm_occupancy_pct": (3, 1.0),
    "tensor_activity_pct": (5, 1.0),
    "dram_activity_pct": (10, 1.0),
    "fp32_activity_pct": (12, 1.0),
    "pcie_tx_bytes_per_s": (20, 2.0**20),
    "pcie_rx_bytes_per_s": (21, 2.0**20),
    "nvlink_rx_bytes_per_s": (60, 2.0**20),
    "nvlink_tx_bytes_per_s": (61, 2.0**20),
}

#: Comparing two samples is the one costly call: it is made once in this time, however often one samples, so that ten
#: samples a second cost little more than one. NVML itself wants more than 0.1 s (nvml.h, nvmlGpmMetricsGet).
MIN_INTERVAL_S = 0.75


class Gpm:
    """The counters of one GPU or MIG slice. ``supported`` is False before Hopper."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml = pynvml
        self._handle = handle
        self._slice: Optional[int] = None
        if optional(pynvml, "nvmlDeviceIsMigDeviceHandle", handle):
            # GPM reads a slice through its parent and the slice's GPU instance.
            self._slice = optional(pynvml, "nvmlDeviceGetGpuInstanceId", handle)
            self._handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        support = optional(pynvml, "nvmlGpmQueryDeviceSupport", self._handle)
        self.supported = bool(support and support.isSupportedDevice)
        self._request: Any = None
        self._before = self._take() if self.supported else None
        self._taken_s = time.monotonic()

    def read(self) -> Dict[str, Optional[float]]:
        """Mean percentages since the last read; None for each that is not there, or read too soon."""
        nothing: Dict[str, Optional[float]] = dict.fromkeys(GPM_METRICS)
        if not self.supported or time.monotonic() - self._taken_s < MIN_INTERVAL_S:
            return nothing
        now = self._take()
        before, self._before, self._taken_s = self._before, now, time.monotonic()
        try:
            return self._compare(before, now) if before and now else nothing
        finally:
            if before:
                optional(self._nvml, "nvmlGpmSampleFree", before)

    def _take(self) -> Any:
        sample = optional(self._nvml, "nvmlGpmSampleAlloc")
        if sample is None:
            return None
        if self._slice is None:
            taken = self._succeeds("nvmlGpmSampleGet", self._handle, sample)
        else:
            taken = self._succeeds("nvmlGpmMigSampleGet", self._handle, self._slice, sample)
        if not taken:
            optional(self._nvml, "nvmlGpmSampleFree", sample)
            return None
        return sample

    def _succeeds(self, function: str, *arguments: Any) -> bool:
        try:
            getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return False
        return True

    def _compare(self, before: Any, now: Any) -> Dict[str, Optional[float]]:
        if self._request is None:  # 19 kB to make anew each time otherwise
            self._request = self._nvml.c_nvmlGpmMetricsGet_t()
            self._request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
            self._request.numMetrics = len(GPM_METRICS)
            for slot, (number, _) in enumerate(GPM_METRICS.values()):
                self._request.metrics[slot].metricId = number
        request = self._request
        request.sample1, request.sample2 = before, now
        if not self._succeeds("nvmlGpmMetricsGet", request):
            return dict.fromkeys(GPM_METRICS)
        return {
            key: round(metric.value * unit, 2) if metric.nvmlReturn == 0 else None
            for (key, (_, unit)), metric in zip(GPM_METRICS.items(), request.metrics)
        }
