"""Metrics at /metrics: the last reading as Prometheus text, under dcgm-exporter's names and labels and under ours.

The text is written here because Prometheus' own client cannot write a counter without ``_total``, and dcgm-exporter's
counters have none: https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv. Format:
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Gpu = Mapping[str, Any]

Samples = Iterable[tuple[Mapping[str, str], float | None]]
#: Intervals after which a reading is stale, and the least seconds: at a driver reset NVML itself takes some.
STALE_INTERVALS = 3
STALE_S = 10.0
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Family(NamedTuple):
    """A metric's name, type and help, and the key of its value in a reading, which is multiplied by ``scale``."""

    name: str
    kind: str
    help: str
    key: str
    scale: float = 1.0

    def value(self, row: Mapping[str, Any]) -> float | None:
        value = row.get(self.key)
        return None if value is None else value * self.scale


@lru_cache(maxsize=1)
def families() -> dict[str, list[Family]]:
    """Return the metrics of each ``gpu`` and each ``container``: dcgm-exporter's counters, and ours."""
    tables = json.loads(resources.files("seatrial.monitor").joinpath("metrics.json").read_text(encoding="utf-8"))
    return {of: [Family(*row) for row in rows] for of, rows in tables.items()}


def _as_dcgm(gpu: Gpu) -> dict[str, Any]:
    """Return the reading of a GPU with what DCGM counts in another way.

    Its "used" leaves out what the driver reserves. Its NVLink bandwidth is of both directions, in units of 1000 KiB/s:
    what it makes of NVML's counters, under the name of a counter; ours is from GPM, so protocol headers are in it.
    Source: ReadAndCacheNvLinkBandwidth in dcgmlib/src/DcgmCacheManager.cpp, as quoted in
    https://github.com/NVIDIA/dcgm-exporter/pull/658.
    """
    used, reserved = gpu.get("memory_used_bytes"), gpu.get("memory_reserved_bytes")
    ways = [way for key in ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s") if (way := gpu.get(key)) is not None]
    taken = None if used is None else max(0.0, used - (reserved or 0))
    both = sum(ways) if ways else None
    return {**gpu, "memory_taken_bytes": taken, "nvlink_both_bytes_per_s": both, "last_xid": gpu["xid"] or 0,
            "vgpu_license": 0}  # fmt: skip


def render(reading: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], hostname: str) -> bytes:
    """Return the whole exposition of a reading and of the live runs (runs.live.live_runs)."""
    gpus = [(_gpu_labels(gpu, reading, hostname), _as_dcgm(gpu)) for gpu in reading["gpus"]]
    containers = [(_container_labels(row), row) for row in reading["containers"]]
    lines: list[str] = []
    for family in families()["gpu"]:
        _add(lines, family.name, family.kind, family.help, ((labels, family.value(gpu)) for labels, gpu in gpus))
    reasons = (({**labels, "reason": each}, 1.0) for labels, gpu in gpus for each in gpu.get("throttle_reasons") or [])
    _add(lines, "seatrial_gpu_throttled", "gauge", "1 for each active clock throttle reason.", reasons)
    for family in families()["container"]:
        _add(lines, family.name, family.kind, family.help, ((labels, family.value(row)) for labels, row in containers))
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
    numbers = (({**labels, "metric": key}, value) for labels, run in labelled for key, value in run["numbers"].items())
    _add(lines, "seatrial_run_metric", "gauge", "Last value the script reported.", numbers)
    bound = (({**labels, "cause": run["bound_by"]}, 1.0) for labels, run in labelled if run["bound_by"])
    _add(lines, "seatrial_run_bound_by", "gauge", "1 for the bottleneck of the last minute.", bound)
    mfu = ((labels, run["mfu"]) for labels, run in labelled)
    _add(lines, "seatrial_run_mfu_ratio", "gauge", "Model FLOPs utilisation of the last minute.", mfu)


def _gpu_labels(gpu: Gpu, reading: Mapping[str, Any], hostname: str) -> dict[str, str]:
    """Return dcgm-exporter's labels; pod, namespace and container when exactly one pod's container is on the GPU."""
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
    """Add a family, unless nothing in it has a value."""
    if not (known := [(labels, value) for labels, value in samples if value is not None]):
        return
    lines.append(f"# HELP {name} {help}\n# TYPE {name} {kind}\n")
    for labels, value in known:
        pairs = ",".join(f'{key}="{text.translate(_ESCAPED)}"' for key, text in labels.items())
        lines.append(f"{name}{{{pairs}}} {value:.10g}\n" if pairs else f"{name} {value:.15g}\n")


class Exposition:
    """The text of /metrics. A scrape gets the last reading, rendered once; only the clock makes new ones.

    A reading that fails, or does not end, is not replaced by the one before: its series are left out, as Prometheus
    expects of an unknown value (they then end in its graphs, and alerts on ``absent()`` fire).
    Source: https://prometheus.io/docs/instrumenting/writing_exporters/#failed-scrapes

    ``runs``: returns the live runs. ``hostname``: label of GPUs.
    """

    def __init__(
        self, runs: Callable[[], Sequence[Mapping[str, Any]]], *, interval_s: float = 1.0, hostname: str | None = None
    ) -> None:
        self._runs, self._hostname = runs, socket.gethostname() if hostname is None else hostname
        self._stale_s = max(STALE_S, STALE_INTERVALS * interval_s)
        #: The last reading, None if it failed; its time on the monotonic clock, and the CPU time it took.
        self._last: tuple[Mapping[str, Any] | None, float, float] = (None, float("-inf"), 0.0)
        self._rendered: tuple[object, bytes] = (None, b"")
        self._lock = threading.Lock()
        self.readings = self.failures = 0

    def renew(self, reading: Mapping[str, Any] | None, cpu_s: float) -> None:
        """Keep a reading for the next scrapes, and count it; None if it failed."""
        if reading is None:
            self.failures += 1
        else:
            self.readings += 1
        self._last = reading, time.monotonic(), cpu_s

    def text(self) -> bytes:
        """Return the exposition, without the series of a reading that is missing or old."""
        last = reading, at_s, cpu_s = self._last
        if reading is None or time.monotonic() - at_s > self._stale_s:
            return self._own(good=False)
        with self._lock:
            if self._rendered[0] is not last:
                self._rendered = last, self._body(reading, cpu_s)
            return self._rendered[1]

    def _body(self, reading: Mapping[str, Any], cpu_s: float) -> bytes:
        begun_s = time.thread_time()
        try:
            runs = self._runs()
        except Exception:  # noqa: BLE001  unreadable runs take nothing from GPUs and containers
            self.failures += 1
            runs = []
        body = render(reading, runs, self._hostname)
        return body + self._own(good=True, cpu_s=cpu_s + time.thread_time() - begun_s)

    def _own(self, *, good: bool, cpu_s: float | None = None) -> bytes:
        """Return the series about the exporter itself, which are always there."""
        ok = "Whether the current reading succeeded; if not, its series are omitted."
        lines: list[str] = []
        for name, kind, help, value in (
            ("readings_total", "counter", "Readings since start.", self.readings),
            ("failed_readings_total", "counter", "Failed readings, of runs or anything else.", self.failures),
            ("reading_ok", "gauge", ok, good),
            ("reading_cpu_seconds", "gauge", "CPU time of the last reading.", cpu_s),
        ):
            _add(lines, f"seatrial_exporter_{name}", kind, help, [({}, value)])
        return "".join(lines).encode()
