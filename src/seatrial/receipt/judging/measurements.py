"""Measurements: evidence in numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Literal

from seatrial.events import AgentFinished, AgentStarted
from seatrial.receipt.evidence.facts import Evidence, Sample
from seatrial.receipt.evidence.fields import mapping, number
from seatrial.receipt.evidence.series import Point
from seatrial.receipt.judging.jax_use import jax_use
from seatrial.receipt.judging.memory_held import gpu_memory
from seatrial.receipt.model import GpuUse, Measurements, Metric

#: Which way a metric is better, by a word in its name; other metrics have no best value.
LOWER_IS_BETTER = {"loss", "error", "perplexity", "rmse", "mae"}
HIGHER_IS_BETTER = {"accuracy", "acc", "f1", "auc", "precision", "recall", "score", "bleu"}


def measure(evidence: Evidence, uuids: Sequence[str], gpu_memory_bytes: int | None = None) -> Measurements:
    """What the run did; GPUs in the order of ``uuids``, those the plan asked for. ``gpu_memory_bytes``: its limit."""
    started, window, samples = evidence.target_started, evidence.window, evidence.window_samples
    energy_j, energy_from = _energy(evidence, uuids)
    cpu_cores = _values(samples, "cpu_cores")
    return Measurements(
        wall_s=evidence.wall_s,
        startup_s=started.at_s if started else None,
        window_start_s=window.start_s if window else None,
        window_s=window.seconds if window else None,
        window_begins=window.begins if window else None,
        samples=len(samples),
        gpus=tuple(_gpu_use(samples, uuid) for uuid in uuids),
        energy_j=energy_j,
        energy_from=energy_from,
        cpu_cores_mean=_mean(cpu_cores),
        cpu_cores_max=max(cpu_cores, default=None),
        memory_peak_bytes=_memory_peak(evidence),
        memory_limit_bytes=_memory_limit(evidence),
        shm_peak_bytes=_top(_values(evidence.samples, "shm_used_bytes")),
        shm_total_bytes=_top(_values(evidence.samples, "shm_total_bytes")),
        images=evidence.steps.images,
        images_per_s=evidence.steps.images_per_s,
        metrics=tuple(_metric(name, points) for name, points in evidence.steps.series.items()),
        gpu_memory=gpu_memory(evidence, gpu_memory_bytes),
        jax=jax_use(evidence),
    )


def _gpu_use(samples: Sequence[Sample], uuid: str) -> GpuUse:
    readings = [sample.gpus[uuid] for sample in samples if uuid in sample.gpus]
    reasons = {name for sample in samples for name in sample.throttled.get(uuid, ())}

    def column(key: str) -> list[float]:
        return [reading[key] for reading in readings if key in reading]

    return GpuUse(
        uuid=uuid,
        samples=len(readings),
        utilization_mean_pct=_mean(column("utilization_pct")),
        utilization_max_pct=max(column("utilization_pct"), default=None),
        sm_activity_mean_pct=_mean(column("sm_activity_pct")),
        tensor_activity_mean_pct=_mean(column("tensor_activity_pct")),
        dram_activity_mean_pct=_mean(column("dram_activity_pct")),
        memory_peak_bytes=_top(column("memory_used_bytes")),
        memory_total_bytes=_top(column("memory_total_bytes")),
        power_mean_w=_mean(column("power_w")),
        power_max_w=max(column("power_w"), default=None),
        temperature_max_c=max(column("temperature_c"), default=None),
        throttled=tuple(sorted(reasons)),
    )


def _energy(evidence: Evidence, uuids: Sequence[str]) -> tuple[float | None, Literal["counter", "power"] | None]:
    """Joules of all GPUs: by the agent's own difference, else of the counters in the samples, else from power."""
    told = [mapping(finished.keys.get("energy_j")) for finished in evidence.all(AgentFinished)]
    differences = [_sum(number(one.get(uuid)) for one in told if uuid in one) for uuid in uuids]
    if None in differences or not uuids:
        differences = [_counter_difference(evidence.samples, uuid) for uuid in uuids]
    counted = [joules for joules in differences if joules is not None and joules >= 0]
    if uuids and len(counted) == len(uuids):
        return sum(counted), "counter"
    integrals = [joules for uuid in uuids if (joules := _integrated_power(evidence.samples, uuid)) is not None]
    if uuids and len(integrals) == len(uuids):
        return sum(integrals), "power"
    return None, None


def _sum(values: Iterable[float | None]) -> float | None:
    """Of an agent on each node, and of each that came back; None when one could not tell, or none did."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _counter_difference(samples: Sequence[Sample], uuid: str) -> float | None:
    readings = [sample.gpus[uuid]["energy_j"] for sample in samples if "energy_j" in sample.gpus.get(uuid, {})]
    return readings[-1] - readings[0] if len(readings) > 1 else None


def _integrated_power(samples: Sequence[Sample], uuid: str) -> float | None:
    """Watts over seconds by the trapezoidal rule; None with fewer than two samples."""
    points = [(s.at_s, s.gpus[uuid]["power_w"]) for s in samples if "power_w" in s.gpus.get(uuid, {})]
    if len(points) < 2:
        return None
    return sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in pairwise(points))


def _memory_peak(evidence: Evidence) -> int | None:
    exited = evidence.exited.number("max_rss_bytes") if evidence.exited else None
    return _top([*_values(evidence.samples, "memory_bytes"), *([exited] if exited else [])])


def _memory_limit(evidence: Evidence) -> int | None:
    """Of the samples, else, for a run too short to have one, what the agent read when it started."""
    started = evidence.first(AgentStarted)
    at_start = number(mapping(started.keys.get("cgroup")).get("memory_limit_bytes")) if started else None
    return _top(_values(evidence.samples, "memory_limit_bytes") or ([at_start] if at_start else []))


def _metric(name: str, points: Sequence[Point]) -> Metric:
    values = [y for _, y in points]
    words = set(re.findall("[a-z0-9]+", name.lower()))
    best = min(values) if words & LOWER_IS_BETTER else max(values) if words & HIGHER_IS_BETTER else None
    return Metric(name=name, first=values[0], last=values[-1], best=best, reports=len(values))


def _values(samples: Iterable[Sample], key: str) -> list[float]:
    return [sample.host[key] for sample in samples if key in sample.host]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _top(values: Sequence[float]) -> int | None:
    return int(max(values)) if values else None
