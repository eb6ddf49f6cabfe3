"""Read samples of each GPU: NVML, the counters of GPM, and Xid errors."""

import time
from contextlib import suppress
from typing import Any, Dict, List, Optional

from seatrial.probe import nvml
from seatrial.probe.nvml import ComputeProcess, optional

#: Key of a sample → (NVML's metric number, its unit in ours); throughput in MiB/s. Source: nvml.h, nvmlGpmMetricId_t.
GPM_METRICS = {
    "graphics_activity_pct": (1, 1.0), "sm_activity_pct": (2, 1.0), "sm_occupancy_pct": (3, 1.0),
    "tensor_activity_pct": (5, 1.0), "dram_activity_pct": (10, 1.0), "fp32_activity_pct": (12, 1.0),
    "pcie_tx_bytes_per_s": (20, 2.0**20), "pcie_rx_bytes_per_s": (21, 2.0**20),
    "nvlink_rx_bytes_per_s": (60, 2.0**20), "nvlink_tx_bytes_per_s": (61, 2.0**20),
}  # fmt: skip

#: NVML refuses to compare samples that are closer (nvml.h, nvmlGpmMetricsGet).
_MIN_INTERVAL_S = 0.11
#: A clock that ticks once an interval is a little early half of the time.
_TOLERANCE = 0.9

_EVENT_XID = 8  # nvml.h: nvmlEventTypeXidCriticalError
#: Most events taken at once; a GPU in trouble repeats itself.
_MAX_AT_ONCE = 64
#: NVML's clock event reasons that hold a GPU back; idling (bit 0) does not. Source: nvml.h, nvmlClocksEventReasons.
THROTTLE_REASONS = {
    0x002: "applications_clocks_setting", 0x004: "sw_power_cap", 0x008: "hw_slowdown", 0x010: "sync_boost",
    0x020: "sw_thermal_slowdown", 0x040: "hw_thermal_slowdown", 0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}  # fmt: skip

#: Interval between readings of temperature, clocks and their limits.
STATE_INTERVAL_S = 0.9

_TEMPERATURE_GPU = 0  # nvml.h: NVML_TEMPERATURE_GPU
_CLOCK_SM = 1  # nvml.h: NVML_CLOCK_SM
_CLOCK_MEMORY = 2  # nvml.h: NVML_CLOCK_MEM
_ECC_CORRECTED, _ECC_UNCORRECTED = 0, 1  # nvml.h: nvmlMemoryErrorType_t
_ECC_VOLATILE = 0  # nvml.h: NVML_VOLATILE_ECC, since the driver loaded
_FIELD_MEMORY_TEMPERATURE = 82  # nvml.h: NVML_FI_DEV_MEMORY_TEMP
_MEMORY_INFO_V2 = 0x02000028  # nvml.h: NVML_STRUCT_VERSION(Memory, 2), 40 bytes


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
        self._before: Any = optional(pynvml, "nvmlGpmSampleAlloc") if self.supported else None
        self._now: Any = optional(pynvml, "nvmlGpmSampleAlloc") if self.supported else None
        self._taken_s: Optional[float] = None
        self._last: Dict[str, Optional[float]] = dict.fromkeys(GPM_METRICS)
        self._take()

    def read(self, interval_s: float) -> Dict[str, Optional[float]]:
        """Return means over the last ``interval_s``: the same if called sooner, so that their mean is one over time.

        None for each that is not there, and for all before the first interval has passed.
        """
        before_s = self._taken_s
        if before_s is None or time.monotonic() - before_s >= max(_MIN_INTERVAL_S, _TOLERANCE * interval_s):
            compared = self._take() and before_s is not None
            self._last = self._compare() if compared else dict.fromkeys(GPM_METRICS)
        return self._last

    def close(self) -> None:
        """Free the memory of the samples."""
        for sample in filter(None, (self._before, self._now)):
            optional(self._nvml, "nvmlGpmSampleFree", sample)
        self._before = self._now = None

    def _take(self) -> bool:
        """Keep the newest sample as the one before and take a new one in its place."""
        if self._before is None or self._now is None:
            return False
        self._before, self._now = self._now, self._before
        if self._slice is None:
            taken = optional(self._nvml, "nvmlGpmSampleGet", self._handle, self._now)
        else:
            taken = optional(self._nvml, "nvmlGpmMigSampleGet", self._handle, self._slice, self._now)
        self._taken_s = None if taken is None else time.monotonic()
        return taken is not None

    def _compare(self) -> Dict[str, Optional[float]]:
        if self._request is None:  # 19 kB to make anew each time otherwise
            self._request = self._nvml.c_nvmlGpmMetricsGet_t()
            self._request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
            self._request.numMetrics = len(GPM_METRICS)
            for slot, (number, _) in enumerate(GPM_METRICS.values()):
                self._request.metrics[slot].metricId = number
        request = self._request
        request.sample1, request.sample2 = self._before, self._now
        if optional(self._nvml, "nvmlGpmMetricsGet", request) is None:
            return dict.fromkeys(GPM_METRICS)
        return {
            key: round(metric.value * unit, 2) if metric.nvmlReturn == 0 else None
            for (key, (_, unit)), metric in zip(GPM_METRICS.items(), request.metrics)
        }


class XidWatch:
    """Registers for the Xid errors of GPUs. ``active`` is False, and there are none, where the driver forbids it."""

    def __init__(self, pynvml: Any, uuids: List[str]) -> None:
        self._nvml = pynvml
        self._set = nvml.optional(pynvml, "nvmlEventSetCreate")
        self.active = False
        for uuid in uuids if self._set is not None else []:
            with suppress(pynvml.NVMLError):  # a MIG slice, or a driver without events
                pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByUUID(uuid), _EVENT_XID, self._set)
                self.active = True

    def new(self) -> Dict[str, List[int]]:
        """Return UUID → Xids since the last call; never waits. Some are the application's own fault (13, 31, 43)."""
        found: Dict[str, List[int]] = {}
        for _ in range(_MAX_AT_ONCE if self.active else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError:  # a timeout: no more; anything else: the GPU's loss is reported elsewhere
                break
            if event.eventType & _EVENT_XID:
                uuid = nvml.optional(self._nvml, "nvmlDeviceGetUUID", event.device) or "?"
                found.setdefault(uuid, []).append(int(event.eventData))
        return found

    def close(self) -> None:
        """Unregister; no more errors follow."""
        if self._set is not None:
            nvml.optional(self._nvml, "nvmlEventSetFree", self._set)
        self._set, self.active = None, False


class Gpu:
    """Every method raises NVMLError when the GPU is lost, and only then; what is not there is None.

    CPU time measured on an H200, driver 580.159.04, with pauses as between samples (in a loop it is less): 0.05 ms a
    call, 2.4 ms for GPM, 3.9 ms for the energy.
    """

    def __init__(self, pynvml: Any, uuid: str) -> None:
        self.nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        self._gpm = Gpm(pynvml, self._handle)
        self._state: Dict[str, Any] = {}
        self._state_read_s = float("-inf")
        self._shares_since_us = 0

    def sample(self, gpm_interval_s: float) -> Dict[str, Any]:
        """Return the keys of events.GPU_SAMPLE_KEYS but counters'. Those of GPM are as old as this time, state's as
        STATE_INTERVAL_S; a GPU that answers nothing has none of them.
        """
        utilization = self._value("nvmlDeviceGetUtilizationRates")
        power_mw = self._value("nvmlDeviceGetPowerUsage")
        memory = self._value("nvmlDeviceGetMemoryInfo")
        if utilization is None and power_mw is None and memory is None:
            return {}
        if time.monotonic() - self._state_read_s >= STATE_INTERVAL_S:
            self._state_read_s, self._state = time.monotonic(), self._read_state()
        return {
            "utilization_pct": float(utilization.gpu) if utilization else None,
            "memory_utilization_pct": float(utilization.memory) if utilization else None,
            "power_w": power_mw / 1000 if power_mw is not None else None,
            "memory_used_bytes": memory.used if memory else None,  # with what the driver reserves; not so in version 2
            "memory_free_bytes": memory.total - memory.used if memory else None,
            "memory_total_bytes": memory.total if memory else None,
            **self._state,
            **self._gpm.read(gpm_interval_s),
        }

    def _read_state(self) -> Dict[str, Any]:
        """Return the keys whose values change slowly."""
        memory = self._value("nvmlDeviceGetMemoryInfo", _MEMORY_INFO_V2)
        bits = self._value("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535 know it by its old name
            bits = self._value("nvmlDeviceGetCurrentClocksThrottleReasons")
        return {
            "temperature_c": self._value("nvmlDeviceGetTemperature", _TEMPERATURE_GPU),
            "sm_clock_mhz": self._value("nvmlDeviceGetClockInfo", _CLOCK_SM),
            "memory_clock_mhz": self._value("nvmlDeviceGetClockInfo", _CLOCK_MEMORY),
            "throttle_reasons": None
            if bits is None
            else [THROTTLE_REASONS[bit] for bit in THROTTLE_REASONS if bits & bit],
            "memory_reserved_bytes": memory.reserved if memory else None,
        }

    def close(self) -> None:
        """Release the samples of GPM."""
        self._gpm.close()

    def counters(self) -> Dict[str, Any]:
        """Return the slow keys of events.GPU_SAMPLE_KEYS: energy and ECC errors."""
        return {
            "energy_j": self.energy_j(),
            "ecc_corrected": self._value("nvmlDeviceGetTotalEccErrors", _ECC_CORRECTED, _ECC_VOLATILE),
            "ecc_uncorrected": self._value("nvmlDeviceGetTotalEccErrors", _ECC_UNCORRECTED, _ECC_VOLATILE),
        }

    def service(self) -> Dict[str, Any]:
        """Return the slow keys that only an exporter reads: memory temperature, remapped rows, PCIe replays, codecs."""
        rows = self._value("nvmlDeviceGetRemappedRows")
        fields = self._value("nvmlDeviceGetFieldValues", [_FIELD_MEMORY_TEMPERATURE])
        encoder, decoder = (self._value("nvmlDeviceGet%sUtilization" % name) for name in ("Encoder", "Decoder"))
        return {
            "memory_temperature_c": int(fields[0].value.uiVal) if fields and fields[0].nvmlReturn == 0 else None,
            "remapped_rows_corrected": rows[0] if rows else None,
            "remapped_rows_uncorrected": rows[1] if rows else None,
            "row_remap_failure": rows[3] if rows else None,
            "pcie_replays": self._value("nvmlDeviceGetPcieReplayCounter"),
            "encoder_pct": encoder[0] if encoder else None,
            "decoder_pct": decoder[0] if decoder else None,
        }

    def energy_j(self) -> Optional[float]:
        """Return the joules since the driver loaded."""
        energy_mj = self._value("nvmlDeviceGetTotalEnergyConsumption")
        return energy_mj / 1000 if energy_mj is not None else None

    def compute_processes(self) -> Optional[List[ComputeProcess]]:
        """Return the processes with a CUDA context; None if NVML does not list them."""
        processes = self._value("nvmlDeviceGetComputeRunningProcesses")
        return None if processes is None else [ComputeProcess(p.pid, p.usedGpuMemory) for p in processes]

    def processes(self) -> Optional[List[ComputeProcess]]:
        """Return the processes with a CUDA context, and their share of the SMs since the last call (None on MIG)."""
        if (listed := self.compute_processes()) is None:
            return None
        shares = self._shares() if listed else {}
        return listed if shares is None else [p._replace(share_pct=shares.get(p.pid, 0.0)) for p in listed]

    def _shares(self) -> Optional[Dict[int, float]]:
        """Return PID → mean share, or None. NVML keeps a few samples a second; {} after its error that nothing ran."""
        since_us, self._shares_since_us = self._shares_since_us, int(time.time() * 1e6)
        if not since_us:
            since_us = self._shares_since_us - 1_000_000
        try:
            found = self.nvml.nvmlDeviceGetProcessUtilization(self._handle, since_us)
        except self.nvml.NVMLError as error:
            if error.value == self.nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return {} if error.value == self.nvml.NVML_ERROR_NOT_FOUND else None
        shares: Dict[int, List[float]] = {}
        for entry in found:
            if entry.timeStamp > since_us:
                shares.setdefault(entry.pid, []).append(float(entry.smUtil))
        return {pid: sum(values) / len(values) for pid, values in shares.items()}

    def _value(self, function: str, *arguments: Any) -> Any:
        return nvml.optional(self.nvml, function, self._handle, *arguments)
