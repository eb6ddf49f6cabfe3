"""GPM: what the SMs, tensor cores and memory of a Hopper (or later) GPU did between two samples.

Needs no root and no DCGM. Measured on an H200 (benchmarks/sample_cost.py): 0.24 ms of CPU to take a sample and 2.1 ms
to compare two, whether one metric is asked for or ten; in a loop 0.05 and 1.7 ms.
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

#: NVML refuses to compare samples that are closer (nvml.h, nvmlGpmMetricsGet).
_MIN_INTERVAL_S = 0.11

#: A clock that ticks once an interval is a little early half of the time.
_TOLERANCE = 0.9


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
        self._before: Any = self._allocate() if self.supported else None
        self._now: Any = self._allocate() if self.supported else None
        self._taken_s: Optional[float] = None
        self._last: Dict[str, Optional[float]] = dict.fromkeys(GPM_METRICS)
        self._take()

    def read(self, interval_s: float) -> Dict[str, Optional[float]]:
        """Means over the last ``interval_s``: sooner, the same again, so that a mean of readings is one over time.

        None for each that is not there, and for all before the first interval has passed.
        """
        before_s = self._taken_s
        if before_s is None or time.monotonic() - before_s >= max(_MIN_INTERVAL_S, _TOLERANCE * interval_s):
            compared = self._take() and before_s is not None
            self._last = self._compare() if compared else dict.fromkeys(GPM_METRICS)
        return self._last

    def close(self) -> None:
        """Give the memory of the samples back."""
        for sample in filter(None, (self._before, self._now)):
            optional(self._nvml, "nvmlGpmSampleFree", sample)
        self._before = self._now = None

    def _allocate(self) -> Any:
        return optional(self._nvml, "nvmlGpmSampleAlloc")

    def _take(self) -> bool:
        """The newest sample becomes the one before, and a new one is taken in its place."""
        if self._before is None or self._now is None:
            return False
        self._before, self._now = self._now, self._before
        if self._slice is None:
            taken = self._succeeds("nvmlGpmSampleGet", self._handle, self._now)
        else:
            taken = self._succeeds("nvmlGpmMigSampleGet", self._handle, self._slice, self._now)
        self._taken_s = time.monotonic() if taken else None
        return taken

    def _succeeds(self, function: str, *arguments: Any) -> bool:
        try:
            getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return False
        return True

    def _compare(self) -> Dict[str, Optional[float]]:
        if self._request is None:  # 19 kB to make anew each time otherwise
            self._request = self._nvml.c_nvmlGpmMetricsGet_t()
            self._request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
            self._request.numMetrics = len(GPM_METRICS)
            for slot, (number, _) in enumerate(GPM_METRICS.values()):
                self._request.metrics[slot].metricId = number
        request = self._request
        request.sample1, request.sample2 = self._before, self._now
        if not self._succeeds("nvmlGpmMetricsGet", request):
            return dict.fromkeys(GPM_METRICS)
        return {
            key: round(metric.value * unit, 2) if metric.nvmlReturn == 0 else None
            for (key, (_, unit)), metric in zip(GPM_METRICS.items(), request.metrics)
        }
