"""Metrics at /metrics: the last reading as Prometheus text, under dcgm-exporter's names and labels and under ours.

The text is written here because Prometheus' own client cannot write a counter without ``_total``, and dcgm-exporter's
counters have none: https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv. Format:
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_MIB = 2.0**20

Gpu = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """A metric's name, type and help, and how its value is taken from a GPU of a reading (None: no sample)."""

    name: str
    kind: str
    help: str
    value: Callable[[Gpu], float | None]


def _key(name: str, scale: float = 1.0) -> Callable[[Gpu], float | None]:
    def take(gpu: Gpu) -> float | None:
        value = gpu.get(name)
        return None if value is None else value * scale

    return take


def _used(gpu: Gpu) -> float | None:
    """DCGM's "used" leaves out what the driver reserves."""
    used, reserved = gpu.get("memory_used_bytes"), gpu.get("memory_reserved_bytes")
    return None if used is None else max(0.0, used - (reserved or 0)) / _MIB


def _nvlink(gpu: Gpu) -> float | None:
    """Both directions in units of 1000 KiB/s: what DCGM makes of NVML's counters, under the name of a counter.

    Source: ReadAndCacheNvLinkBandwidth in dcgmlib/src/DcgmCacheManager.cpp, as told in
    https://github.com/NVIDIA/dcgm-exporter/pull/658. Ours is from GPM, so protocol headers are in it.
    """
    ways = [gpu.get("nvlink_tx_bytes_per_s"), gpu.get("nvlink_rx_bytes_per_s")]
    known = [way for way in ways if way is not None]
    return sum(known) / 1024 / 1000 if known else None


#: dcgm-exporter's default counters, and its usual further ones.
DCGM = (
    Family("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", _key("sm_clock_mhz")),
    Family("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", _key("memory_clock_mhz")),
    Family("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", _key("memory_temperature_c")),
    Family("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", _key("temperature_c")),
    Family("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", _key("power_w")),
    Family("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since boot (in mJ).", _key("energy_j", 1e3)),
    Family("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", _key("pcie_replays")),
    Family("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", _key("utilization_pct")),
    Family("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).", _key("memory_utilization_pct")),
    Family("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %).", _key("encoder_pct")),
    Family("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %).", _key("decoder_pct")),
    Family("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", lambda gpu: gpu["xid"] or 0),
    Family("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB).", _key("memory_free_bytes", 1 / _MIB)),
    Family("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).", _used),
    Family("DCGM_FI_DEV_FB_RESERVED", "gauge", "Memory reserved (in MiB).", _key("memory_reserved_bytes", 1 / _MIB)),
    Family("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit volatile ECC errors.", _key("ecc_corrected")),
    Family("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit volatile ECC errors.", _key("ecc_uncorrected")),
    Family("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter", "NVLink traffic of all links (in MB/s: no counter).",
           _nvlink),
    Family("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status", lambda gpu: 0),
    Family("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors",
           _key("remapped_rows_uncorrected")),
    Family("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors",
           _key("remapped_rows_corrected")),
    Family("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed", _key("row_remap_failure")),
    Family("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.",
           _key("graphics_activity_pct", 0.01)),
    Family("DCGM_FI_PROF_SM_ACTIVE", "gauge", "The ratio of cycles an SM has at least 1 warp assigned.",
           _key("sm_activity_pct", 0.01)),
    Family("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "The ratio of number of warps resident on an SM.",
           _key("sm_occupancy_pct", 0.01)),
    Family("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active.",
           _key("tensor_activity_pct", 0.01)),
    Family("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gauge", "Ratio of cycles the fp32 pipes are active.",
           _key("fp32_activity_pct", 0.01)),
    Family("DCGM_FI_PROF_DRAM_ACTIVE", "gauge", "Ratio of cycles the device memory interface is active.",
           _key("dram_activity_pct", 0.01)),
    Family("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "Rate of data sent over PCIe, in bytes per second.",
           _key("pcie_tx_bytes_per_s")),
    Family("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "Rate of data received over PCIe, in bytes per second.",
           _key("pcie_rx_bytes_per_s")),
)  # fmt: skip

OWN_GPU = (
    Family("seatrial_gpu_sm_activity_ratio", "gauge", "SM cycles with a warp resident.", _key("sm_activity_pct", 0.01)),
    Family("seatrial_gpu_sm_occupancy_ratio", "gauge", "Resident warps, as a share of the maximum.",
           _key("sm_occupancy_pct", 0.01)),
    Family("seatrial_gpu_tensor_activity_ratio", "gauge", "Cycles with a tensor pipe active.",
           _key("tensor_activity_pct", 0.01)),
    Family("seatrial_gpu_dram_activity_ratio", "gauge", "Share of memory bandwidth.", _key("dram_activity_pct", 0.01)),
    Family("seatrial_gpu_nvlink_transmit_bytes_per_second", "gauge", "NVLink traffic out, all links.",
           _key("nvlink_tx_bytes_per_s")),
    Family("seatrial_gpu_nvlink_receive_bytes_per_second", "gauge", "NVLink traffic in, all links.",
           _key("nvlink_rx_bytes_per_s")),
)  # fmt: skip

#: Name, help, key of a container in a reading, scale.
OWN_CONTAINER = (
    ("seatrial_container_cpu_cores", "CPU cores in use.", "cpu_cores", 1.0),
    ("seatrial_container_memory_bytes", "Memory in use, without droppable cache.", "memory_bytes", 1.0),
    ("seatrial_container_memory_limit_bytes", "Memory limit.", "memory_limit_bytes", 1.0),
    ("seatrial_container_shm_used_bytes", "Use of /dev/shm.", "shm_used_bytes", 1.0),
    ("seatrial_container_shm_size_bytes", "Size of /dev/shm.", "shm_total_bytes", 1.0),
    ("seatrial_container_gpu_memory_bytes", "GPU memory of its processes.", "gpu_memory_bytes", 1.0),
    ("seatrial_container_gpu_share_ratio", "Its share of the SMs' time, summed over GPUs.", "gpu_share_pct", 0.01),
    ("seatrial_container_processes", "Processes.", "processes", 1.0),
)

Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float | None]]


def render(reading: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], hostname: str) -> bytes:
    """The whole exposition of a reading and of the live runs (runs.live.live_runs)."""
    gpus = [(_gpu_labels(gpu, reading, hostname), gpu) for gpu in reading["gpus"]]
    lines: list[str] = []
    for family in DCGM + OWN_GPU:
        _add(lines, family.name, family.kind, family.help, ((labels, family.value(gpu)) for labels, gpu in gpus))
    reasons = (
        ({**labels, "reason": reason}, 1.0) for labels, gpu in gpus for reason in gpu.get("throttle_reasons") or []
    )
    _add(lines, "seatrial_gpu_throttled", "gauge", "1 for each active clock throttle reason.", reasons)
    for name, help, key, scale in OWN_CONTAINER:
        rows = ((_container_labels(row), row[key]) for row in reading["containers"])
        values = ((labels, None if value is None else value * scale) for labels, value in rows)
        _add(lines, name, "gauge", help, values)
    _add_runs(lines, runs)
    machine = reading["machine"]
    _add(lines, "seatrial_machine_cpu_cores", "gauge", "CPU cores in use.", [({}, machine["cpu_cores"])])
    _add(lines, "seatrial_machine_memory_used_bytes", "gauge", "Memory in use.", [({}, machine["memory_used_bytes"])])
    up = 1.0 if reading["gpus"] and not reading["problems"] else 0.0
    _add(lines, "seatrial_nvml_up", "gauge", "Whether every GPU responds.", [({}, up)])
    _add(lines, "seatrial_reading_timestamp_seconds", "gauge", "When this was read.", [({}, reading["t"])])
    return "".join(lines).encode("utf-8", "replace")  # a container's labels may hold half a character


def _add_runs(lines: list[str], runs: Sequence[Mapping[str, Any]]) -> None:
    labelled = [({"run": run["id"], "run_name": run["name"] or "", "target": run["target"]}, run) for run in runs]
    numbers = (
        ({**labels, "metric": name}, value) for labels, run in labelled for name, value in run["numbers"].items()
    )
    _add(lines, "seatrial_run_metric", "gauge", "Last value the script reported.", numbers)
    bound = (({**labels, "cause": run["bound_by"]}, 1.0) for labels, run in labelled if run["bound_by"])
    _add(lines, "seatrial_run_bound_by", "gauge", "1 for the bottleneck of the last minute.", bound)
    mfu = ((labels, run["mfu"]) for labels, run in labelled)
    _add(lines, "seatrial_run_mfu_ratio", "gauge", "Model FLOPs utilisation of the last minute.", mfu)


def _gpu_labels(gpu: Gpu, reading: Mapping[str, Any], hostname: str) -> dict[str, str]:
    """As dcgm-exporter has them; pod, namespace and container when exactly one pod's container is on the GPU."""
    labels = {
        "gpu": str(gpu["index"]),
        "UUID": gpu["uuid"],
        "pci_bus_id": gpu["pci_bus_id"] or "",
        "device": f"nvidia{gpu['index']}",
        "modelName": gpu["name"],
        "Hostname": hostname,
        "DCGM_FI_DRIVER_VERSION": reading["driver_version"] or "",
    }
    if gpu["mig"]:
        labels["GPU_I_ID"] = gpu["mig"].partition(":")[2]
    on_it = {process["container_id"] for process in gpu["processes"]}
    pods = [row for row in reading["containers"] if row["id"] in on_it and row["pod_uid"]]
    if len(pods) == 1 and pods[0]["name"].count("/") == 2:
        labels["namespace"], labels["pod"], labels["container"] = pods[0]["name"].split("/")
    return labels


def _container_labels(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "container": row["name"],
        "container_id": row["id"][:12],
        "image": row["image"] or "",
        "engine": row["engine"],
        "run": row["run_id"] or "",
        "run_name": row["run_name"] or "",
    }


def _add(lines: list[str], name: str, kind: str, help: str, samples: Samples) -> None:
    """A family, left out whole when nothing has a value."""
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return
    lines.append(f"# HELP {name} {help}\n# TYPE {name} {kind}\n")
    for labels, value in known:
        pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {value:.10g}\n" if pairs else f"{name} {value:.15g}\n")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


#: A reading is old after so many intervals, and not before so many seconds: at a driver reset NVML takes some itself.
STALE_INTERVALS = 3
STALE_S = 10.0


class _Last(NamedTuple):
    """The last reading, None if it failed; its time on the monotonic clock, and the CPU time it took."""

    reading: Mapping[str, Any] | None
    at_s: float
    cpu_s: float


class Exposition:
    """The text of /metrics. A scrape gets the last reading, rendered once; only the clock makes new ones.

    A reading that fails, or does not end, is not replaced by the one before: its series are left out, as Prometheus
    expects of an unknown value (they then end in its graphs, and alerts on ``absent()`` fire).
    Source: https://prometheus.io/docs/instrumenting/writing_exporters/#failed-scrapes

    Args:
        runs: returns the live runs. hostname: label of GPUs.
    """

    def __init__(
        self, runs: Callable[[], Sequence[Mapping[str, Any]]], *, interval_s: float = 1.0, hostname: str | None = None
    ) -> None:
        self._runs, self._hostname = runs, socket.gethostname() if hostname is None else hostname
        self._stale_s = max(STALE_S, STALE_INTERVALS * interval_s)
        self._last = _Last(None, float("-inf"), 0.0)
        self._rendered: tuple[_Last, bytes, bytes] | None = None
        self._lock = threading.Lock()
        self.readings = self.failures = 0

    def renew(self, reading: Mapping[str, Any] | None, cpu_s: float) -> None:
        """Take over a reading; None if it failed."""
        if reading is None:
            self.failures += 1
        else:
            self.readings += 1
        self._last = _Last(reading, time.monotonic(), cpu_s)

    def text(self) -> tuple[bytes, bytes]:
        """Return the exposition, plain and gzipped; without a reading's series if there is none, or it is old."""
        last = self._last
        if last.reading is not None and time.monotonic() - last.at_s > self._stale_s:
            body = self._own(good=False)
            return body, gzip.compress(body, 1)
        with self._lock:
            if self._rendered is None or self._rendered[0] is not last:
                body = self._body(last)
                self._rendered = last, body, gzip.compress(body, 1)
            return self._rendered[1:]

    def _body(self, last: _Last) -> bytes:
        if last.reading is None:
            return self._own(good=False)
        begun_s = time.thread_time()
        try:
            runs = self._runs()
        except Exception:  # noqa: BLE001  unreadable runs take nothing from GPUs and containers
            self.failures += 1
            runs = []
        body = render(last.reading, runs, self._hostname)
        return body + self._own(good=True, cpu_s=last.cpu_s + time.thread_time() - begun_s)

    def _own(self, *, good: bool, cpu_s: float | None = None) -> bytes:
        """Return our own series, which are always there."""
        ok = "Whether the current reading succeeded; if not, its series are omitted."
        rows = [
            ("readings_total", "counter", "Readings since start.", f"{self.readings}"),
            ("failed_readings_total", "counter", "Failed readings, of runs or anything else.", f"{self.failures}"),
            ("reading_ok", "gauge", ok, f"{good:d}"),
        ]
        if cpu_s is not None:
            rows.append(("reading_cpu_seconds", "gauge", "CPU time of the last reading.", f"{cpu_s:.6f}"))
        return "".join(
            f"# HELP seatrial_exporter_{name} {help}\n# TYPE seatrial_exporter_{name} {kind}\n"
            f"seatrial_exporter_{name} {value}\n"
            for name, kind, help, value in rows
        ).encode()
