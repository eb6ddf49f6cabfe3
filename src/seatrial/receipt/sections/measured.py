"""Measured: wall time, GPUs, energy, CPU and memory, throughput, and the numbers that the script reported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from seatrial.common.signals import FACTS, MEMORY
from seatrial.events import AgentFinished, AgentStarted
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.fields import items, mapping, number, text
from seatrial.receipt.formatting import count, energy, figure, gpu_names, metric_figure, percent, rate
from seatrial.receipt.section import Block, Record, Row, Rows, Section

if TYPE_CHECKING:
    from seatrial.receipt.evidence import Evidence, RunEvidence, Sample
    from seatrial.receipt.model import Receipt
    from seatrial.receipt.reported import Point

#: The better direction of a metric, by a word in its name; other metrics have no best value.
LOWER_IS_BETTER = {"loss", "error", "perplexity", "rmse", "mae"}
HIGHER_IS_BETTER = {"accuracy", "acc", "f1", "auc", "precision", "recall", "score", "bleu"}

#: A framework as the plan and the hook name it → as its project writes it.
FRAMEWORKS = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}

#: Metrics in a terminal; the others are in Markdown and HTML.
MAX_METRICS = 8

#: JAX functions of a line of the hook's.
_MOST_FUNCTIONS = 8


class GpuUse(Record):
    """The use of one GPU in the training window; None if the chip or driver has no such counter."""

    uuid: str
    samples: int
    utilization_mean_pct: float | None = None
    utilization_max_pct: float | None = None
    sm_activity_mean_pct: float | None = None
    tensor_activity_mean_pct: float | None = None
    dram_activity_mean_pct: float | None = None
    memory_peak_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    temperature_max_c: float | None = None
    throttled: tuple[str, ...] = ()


class Metric(Record):
    """A number that the target reported. ``best`` only if its name shows the better direction."""

    name: str
    first: float
    last: float
    best: float | None = None
    reports: int


class GpuMemory(Record):
    """The effect of ``--gpu-memory``, as the hook in the target's processes reported it.

    Attributes:
        limit_bytes: of each GPU, for each process.
        frameworks: those whose allocators got the limit; () if none started a GPU.
        peak_bytes: the most that one of them used of one GPU; None if none reported it at its end.
        failed: why a framework could not be given the limit, or None.
    """

    limit_bytes: int
    frameworks: tuple[str, ...] = ()
    peak_bytes: int | None = None
    failed: str | None = None


class JaxCalls(Record):
    """A compiled function of the script's. ``calls_per_s``: from its first call's end to its last's."""

    name: str
    calls: int
    calls_per_s: float | None = None


class JaxUse(Record):
    """JAX's own report: platforms, number and time of XLA's compilations, and the functions with the most calls."""

    version: str
    backends: tuple[str, ...] = ()
    compiled: int = 0
    compile_s: float = 0.0
    functions: tuple[JaxCalls, ...] = ()


class Measurements(Record):
    """The measurements.

    Attributes:
        wall_s: of the target. startup_s: from the first event to the target's start. window_start_s, window_s: the
            training window (evidence.py defines it), since the first event.
        energy_j: of all GPUs. energy_from: ``counter`` (the GPU's own) or ``power`` (samples, integrated).
        memory_peak_bytes: of the container, or of the target's processes if there is none.
        images, images_per_s: of training, as the target counted them.
        gpu_memory: None without ``--gpu-memory``. jax: None if the script did not use it, or without the hook.
    """

    wall_s: float | None = None
    startup_s: float | None = None
    window_start_s: float | None = None
    window_s: float | None = None
    window_begins: str | None = None
    samples: int = 0
    gpus: tuple[GpuUse, ...] = ()
    energy_j: float | None = None
    energy_from: Literal["counter", "power"] | None = None
    cpu_cores_mean: float | None = None
    cpu_cores_max: float | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    shm_peak_bytes: int | None = None
    shm_total_bytes: int | None = None
    images: int | None = None
    images_per_s: float | None = None
    metrics: tuple[Metric, ...] = ()
    gpu_memory: GpuMemory | None = None
    jax: JaxUse | None = None


class Measured(Section):
    title = "Measured"

    def read(self, run: RunEvidence) -> dict[str, Any]:
        return {"measurements": run.measurements}

    def blocks(self, receipt: Receipt) -> list[Block]:
        measured, names = receipt.measurements, gpu_names(receipt.header.gpus)
        rows = [
            ("wall time", _wall(measured)),
            ("window", _window(measured)),
            *[row for use in measured.gpus for row in _gpu_rows(names.get(use.uuid, use.uuid), use)],
            ("GPU memory limit", _limit(measured.gpu_memory)),
            ("JAX", _jax(measured.jax)),
            ("energy", _energy(measured)),
            ("CPU", _cpu(measured)),
            ("memory", _share("peak of the whole run", measured.memory_peak_bytes, measured.memory_limit_bytes)),
            ("/dev/shm", _share("peak of the run's samples", measured.shm_peak_bytes, measured.shm_total_bytes)),
            ("throughput", _throughput(measured)),
        ]
        blocks: list[Block] = [Rows([Row(label, value) for label, value in rows if value])]
        if measured.metrics:
            metrics = [Row(metric.name, _metric_words(metric)) for metric in measured.metrics]
            blocks.append(Rows(metrics, "Reported by the script", MAX_METRICS))
        return blocks


def _jax(used: JaxUse | None) -> str | None:
    """Return ``train_step called 4,210 times, 812/s; 12 compilations took 3.2 s; on cuda``."""
    if used is None:
        return None
    parts = [
        f"{each.name} called {count(each.calls, 'time')}"
        + (f", {rate(each.calls_per_s)}/s" if each.calls_per_s else "")
        for each in used.functions
    ]
    parts += [f"{count(used.compiled, 'compilation')} took {format_seconds(used.compile_s)}"] if used.compiled else []
    parts += [f"on {', '.join(used.backends)}"] if used.backends else []
    return "; ".join(parts)


def _gpu_rows(name: str, use: GpuUse) -> list[tuple[str, str | None]]:
    activity = (
        ("utilisation mean", use.utilization_mean_pct),
        ("max", use.utilization_max_pct),
        ("SM activity", use.sm_activity_mean_pct),
        ("tensor", use.tensor_activity_mean_pct),
        ("DRAM", use.dram_activity_mean_pct),
    )
    power = (
        use.power_mean_w is not None and f"mean {use.power_mean_w:.0f} W",
        use.power_max_w is not None and f"max {use.power_max_w:.0f} W",
        use.temperature_max_c is not None and f"{use.temperature_max_c:.0f} °C max",
        use.throttled and f"throttled: {', '.join(use.throttled)}",
    )
    return [
        (f"{name} busy", ", ".join(f"{label} {percent(value)}" for label, value in activity if value is not None)),
        (f"{name} memory", _share("peak of the window's samples", use.memory_peak_bytes, use.memory_total_bytes)),
        (f"{name} power", ", ".join(words for words in power if words)),
    ]


def _limit(memory: GpuMemory | None) -> str | None:
    if memory is None:
        return None
    limit = format_bytes(memory.limit_bytes)
    if memory.failed:
        return f"limit of {limit} not enforced: {memory.failed}"
    if not memory.frameworks:
        return f"{limit} for each process; no process that got it started a GPU"
    names = " and ".join(memory.frameworks)
    if memory.peak_bytes is None:
        return f"{limit}, given to {names}; no peak was reported"
    return f"peak {format_bytes(memory.peak_bytes)} of {limit}, as {names} counted; CUDA's own is on top"


def _wall(measured: Measurements) -> str | None:
    if measured.wall_s is None:
        return None
    startup = f", after {format_seconds(measured.startup_s)} of start-up" if measured.startup_s is not None else ""
    return format_seconds(measured.wall_s) + startup


def _window(measured: Measurements) -> str | None:
    if measured.window_s is None:
        return None
    return f"{format_seconds(measured.window_s)} from {measured.window_begins}, {count(measured.samples, 'sample')}"


def _energy(measured: Measurements) -> str | None:
    if measured.energy_j is None:
        return None
    return energy(measured.energy_j) + (", integrated from power samples" if measured.energy_from == "power" else "")


def _cpu(measured: Measurements) -> str | None:
    if measured.cpu_cores_mean is None or measured.cpu_cores_max is None:
        return None
    return f"mean {measured.cpu_cores_mean:.2f} cores, max {measured.cpu_cores_max:.2f}"


def _throughput(measured: Measurements) -> str | None:
    if measured.images_per_s is None:
        return None
    total = f", {figure(measured.images)} examples in all" if measured.images else ""
    return f"{figure(round(measured.images_per_s, 1))} examples/s{total}"


def _metric_words(metric: Metric) -> str:
    if metric.reports == 1:
        return metric_figure(metric.name, metric.last)
    best = f"best {metric_figure(metric.name, metric.best)}, " if metric.best is not None else ""
    last, first = metric_figure(metric.name, metric.last), metric_figure(metric.name, metric.first)
    return f"{last} ({best}first {first}, {metric.reports} reports)"


def _share(words: str, part: int | None, whole: int | None) -> str | None:
    if part is None:
        return None
    share = f", {percent(100 * part / whole)} of {format_bytes(whole)}" if whole else ""
    return f"{words} {format_bytes(part)}{share}"


def measure(evidence: Evidence, uuids: Sequence[str], gpu_memory_bytes: int | None = None) -> Measurements:
    """Measure the run; GPUs in the order of ``uuids``, those in the plan. ``gpu_memory_bytes``: its limit."""
    started, window, samples = evidence.target_started, evidence.window, evidence.window_samples
    energy_j, energy_from = _joules(evidence, uuids)
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
        gpu_memory=_gpu_memory(evidence, gpu_memory_bytes),
        jax=_jax_use(evidence),
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


def _joules(evidence: Evidence, uuids: Sequence[str]) -> tuple[float | None, Literal["counter", "power"] | None]:
    """Return the energy of all GPUs: the agents' own difference, else of the samples' counters, else from power."""
    reported = [mapping(finished.keys.get("energy_j")) for finished in evidence.all(AgentFinished)]
    differences = [_sum(number(each.get(uuid)) for each in reported if uuid in each) for uuid in uuids]
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
    """Add the values of each node's agents; None if one is unknown, or if there are none."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _counter_difference(samples: Sequence[Sample], uuid: str) -> float | None:
    readings = [sample.gpus[uuid]["energy_j"] for sample in samples if "energy_j" in sample.gpus.get(uuid, {})]
    return readings[-1] - readings[0] if len(readings) > 1 else None


def _integrated_power(samples: Sequence[Sample], uuid: str) -> float | None:
    """Integrate watts over seconds by the trapezoidal rule; None with fewer than two samples."""
    points = [(s.at_s, s.gpus[uuid]["power_w"]) for s in samples if "power_w" in s.gpus.get(uuid, {})]
    if len(points) < 2:
        return None
    return sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in pairwise(points))


def _memory_peak(evidence: Evidence) -> int | None:
    exited = evidence.exited.number("max_rss_bytes") if evidence.exited else None
    return _top([*_values(evidence.samples, "memory_bytes"), *([exited] if exited else [])])


def _memory_limit(evidence: Evidence) -> int | None:
    """Return the samples' limit, else, for a run too short to have one, the agent's reading at its start."""
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


def _gpu_memory(evidence: Evidence, limit_bytes: int | None) -> GpuMemory | None:
    """Read the hook's lines about the limit, which the target could write, too; None without a limit."""
    if limit_bytes is None:
        return None
    lines = [line for keys in evidence.hook_lines if (line := mapping(keys.get(MEMORY)))]
    lines = [line for line in lines if text(line.get("framework")) in FRAMEWORKS]
    names = [FRAMEWORKS[str(line["framework"])] for line in lines if line.get("limit_bytes") == limit_bytes]
    values = [number(each) for line in lines for each in items(line.get("peak_bytes"))[:64]]
    peaks = [peak for peak in values if peak is not None and peak >= 0]
    failed = [reason for line in lines if (reason := text(line.get("failed")))]
    return GpuMemory(
        limit_bytes=limit_bytes,
        frameworks=tuple(dict.fromkeys(names)),
        peak_bytes=int(max(peaks)) if peaks else None,
        failed=failed[0] if failed else None,
    )


def _jax_use(evidence: Evidence) -> JaxUse | None:
    """Read the hook's line about JAX, which the target could write, too; of several processes the busiest."""
    found: JaxUse | None = None
    for keys in evidence.hook_lines:
        facts = mapping(keys.get(FACTS))
        version = text(facts.get("jax"))
        if not version:
            continue
        functions = _functions(facts)
        calls = sum(each.calls for each in functions)
        if found is None or calls >= sum(each.calls for each in found.functions):
            found = JaxUse(
                version=version[:40],
                backends=tuple(str(each)[:20] for each in items(facts.get("jax_backends"))[:_MOST_FUNCTIONS]),
                compiled=int(number(facts.get("jax_compiled")) or 0),
                compile_s=number(facts.get("jax_compile_s")) or 0.0,
                functions=tuple(functions),
            )
    return found


def _functions(facts: Mapping[str, Any]) -> list[JaxCalls]:
    made = []
    for each in map(mapping, items(facts.get("jax_calls"))[:_MOST_FUNCTIONS]):
        name, calls, seconds = text(each.get("name")), number(each.get("calls")), number(each.get("seconds"))
        if name and calls and calls > 0 and seconds is not None and seconds >= 0:
            per_s = (calls - 1) / seconds if calls > 1 and seconds > 0 else None
            made.append(JaxCalls(name=name[:100], calls=int(calls), calls_per_s=per_s))
    return made
