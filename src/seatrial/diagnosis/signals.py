"""Signals: the means that a diagnosis rests on, from ``sample`` and ``step`` events as they are in events.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from seatrial.common.signals import Anatomy, is_hooks, read_anatomy
from seatrial.diagnosis import AT

_GPU_KEYS = (
    "utilization_pct", "graphics_activity_pct", "sm_activity_pct", "sm_occupancy_pct", "tensor_activity_pct",
    "fp32_activity_pct", "dram_activity_pct", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s", "power_w", "sm_clock_mhz",
)  # fmt: skip
_HOST_KEYS = ("cpu_cores", "main_cpu_cores", "worker_cpu_cores", "workers", "cpu_throttled_pct", "cpu_quota_cores")


class Signals(NamedTuple):
    """Means over the samples given; GPU values also over the GPUs. A value without samples is None.

    Attributes:
        gpus: how many were sampled. samples: how many samples had a GPU value.
        gpu, host: key of a sample → mean.
        throttled: throttle reason → share of readings that showed it, 0 to 1.
        host_memory_share: highest use of the memory limit, 0 to 1.
        window_s: time the samples and steps span.
        data_wait, communication_wait: share of the window that the script reports as waiting, 0 to 1.
        flops_per_s: of all ranks together, as the script counts them.
        utilization: of each GPU, the mean.
        ranks: what the hook measured of each rank's steps; () where it measured nothing.
        gpu_name: by NVML; "" if unknown.
    """

    gpus: int
    samples: int
    gpu: Mapping[str, float]
    host: Mapping[str, float]
    throttled: Mapping[str, float]
    host_memory_share: float | None
    window_s: float | None
    data_wait: float | None = None
    communication_wait: float | None = None
    flops_per_s: float | None = None
    utilization: tuple[float, ...] = ()
    ranks: tuple[Anatomy, ...] = ()
    gpu_name: str = ""

    @property
    def first(self) -> Anatomy:
        """Return the steps of rank 0; empty ones without measurements."""
        return self.ranks[0] if self.ranks else Anatomy(0, 0, 0.0, {})

    def share(self, region: str) -> float:
        """Return the measured share of rank 0's time; 0 without measurements."""
        return self.first.share(region)

    @property
    def lost_in_waits(self) -> float:
        """Return the most that the script's waits for the GPU can cost, as a share of the time.

        Without them a step takes as long as the host's other work or as the GPU's kernels, whichever is longer.
        """
        rests = 1.0 - self.gpu.get("utilization_pct", 0.0) / 100
        return max(0.0, min(self.share("sync") + self.python_for_waits, rests))

    @property
    def python_for_waits(self) -> float:
        """Return the share of Python at lines of the loop that also wait for the GPU, which computes what they read."""
        sites = {wait.site.partition(" ")[0] for wait in self.first.waits}
        return sum(share for site, share in self.first.lines if site in sites)

    @property
    def recompiled(self) -> float:
        """Return the share of rank 0's time that torch.compile took after the first steps."""
        return self.first.recompile_s / (self.first.seconds or 1.0)


def signals(
    samples: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]] = (), gpu_name: str = ""
) -> Signals:
    """Return the signals of ``sample`` events and the ``step`` events of the same time; garbage is skipped.

    Rates of the first step line are left out: what it counts came before its time.
    """
    ranks = read_anatomy(steps)
    steps = [step for step in steps if not is_hooks(step)]
    readings = [gpu for sample in samples for gpu in _entries(sample.get("gpus"))]
    uuids = {str(gpu.get("uuid")) for gpu in readings}
    gpu = {key: fmean(values) for key in _GPU_KEYS if (values := _numbers(readings, key))}
    host = {key: fmean(values) for key in _HOST_KEYS if (values := _numbers(samples, key))}
    seen = [gpu for gpu in readings if isinstance(gpu.get("throttle_reasons"), list)]
    reasons = {str(reason) for gpu in seen for reason in gpu["throttle_reasons"]}
    step_window_s = _span(steps)
    busy = (_numbers([r for r in readings if str(r.get("uuid")) == uuid], "utilization_pct") for uuid in sorted(uuids))
    return Signals(
        gpus=len(uuids),
        samples=len([sample for sample in samples if _numbers(_entries(sample.get("gpus")), "utilization_pct")])
        or len(_numbers(readings, "sm_activity_pct")),
        gpu=gpu,
        host=host,
        throttled={reason: fmean([reason in gpu["throttle_reasons"] for gpu in seen]) for reason in reasons},
        host_memory_share=_memory_share(samples),
        window_s=_span(samples),
        data_wait=_share(steps, "data_s", step_window_s),
        communication_wait=_share(steps, "communication_s", step_window_s),
        flops_per_s=_per_second(steps, "flops", step_window_s),
        utilization=tuple(fmean(values) for values in busy if values),
        ranks=ranks,
        gpu_name=gpu_name,
    )


def ranks_wait(seen: Signals) -> bool:
    """Return whether several GPUs run kernels that neither compute nor touch memory: ranks that wait for another."""
    keys = ("tensor_activity_pct", "dram_activity_pct")
    loaders = seen.host.get("worker_cpu_cores", 0.0) / max(1, seen.gpus) >= AT.WORKERS_ACTIVE_CORES
    return (
        seen.gpus > 1
        and not loaders
        and seen.gpu.get("utilization_pct", 0.0) >= AT.WAITING_UTILIZATION_PCT
        and all(seen.gpu.get(key, 100.0) < AT.WAITING_ACTIVITY_PCT for key in keys)
    )


def _share(steps: Sequence[Mapping[str, Any]], key: str, window_s: float | None) -> float | None:
    """Return the share by rank 0 alone: the ranks wait at the same time."""
    total = _per_second([step for step in steps if not step.get("rank")], key, window_s)
    return None if total is None else min(1.0, total)


def _per_second(steps: Sequence[Mapping[str, Any]], key: str, window_s: float | None) -> float | None:
    values = _numbers(steps[1:], key)
    return sum(values) / window_s if values and window_s else None


def _span(events: Sequence[Mapping[str, Any]]) -> float | None:
    times = _numbers(events, "t")
    return max(times) - min(times) if len(times) > 1 and max(times) > min(times) else None


def _memory_share(samples: Sequence[Mapping[str, Any]]) -> float | None:
    pairs = ((_numbers([each], "memory_bytes"), _numbers([each], "memory_limit_bytes")) for each in samples)
    return max((used[0] / limit[0] for used, limit in pairs if used and limit and limit[0] > 0), default=None)


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _numbers(mappings: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    """Return the finite, not negative numbers under a key."""
    found = []
    for mapping in mappings:
        value = mapping.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e30:
            found.append(float(value))
    return found
