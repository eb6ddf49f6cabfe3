"""Measured: wall time, GPUs, energy, CPU and memory, throughput, and the numbers that the script reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from seatrial.common.signals import FACTS, MEMORY
from seatrial.events import AgentFinished, AgentStarted
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.printed import Printed, PrintedSeries
from seatrial.receipt.section import Block, Record, Row, Rows, Section
from seatrial.receipt.values import count, energy, figure, gpu_names, items, mapping, number, percent, text

if TYPE_CHECKING:
    from seatrial.receipt.evidence import Evidence, RunEvidence, SampleFacts
    from seatrial.receipt.model import Receipt
    from seatrial.receipt.reported import Point

#: The better direction of a metric, by a word in its name; other metrics have no best value.
LOWER_IS_BETTER = {"loss", "error", "perplexity", "ppl", "rmse", "mae", "mse", "nll", "logloss", "wer", "cer", "err"}
HIGHER_IS_BETTER = {"accuracy", "acc", "f1", "auc", "precision", "recall", "score", "bleu", "map", "iou", "miou",
                    "psnr"}  # fmt: skip
#: A framework as the plan and the hook name it → as its project writes it.
FRAMEWORKS = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}
#: Metrics in a terminal; the others are in Markdown and HTML.
MAX_METRICS = 8
#: JAX's platforms kept of a line of the hook's.
_MOST_BACKENDS = 8
#: A measurement of a GPU, the key of its samples, and its function of them.
_OF_GPUS: tuple[tuple[str, str, Callable[[list[float]], float]], ...] = (
    ("utilization_mean_pct", "utilization_pct", fmean),
    ("utilization_max_pct", "utilization_pct", max),
    ("sm_activity_mean_pct", "sm_activity_pct", fmean),
    ("tensor_activity_mean_pct", "tensor_activity_pct", fmean),
    ("dram_activity_mean_pct", "dram_activity_pct", fmean),
    ("memory_peak_bytes", "memory_used_bytes", lambda values: int(max(values))),
    ("memory_total_bytes", "memory_total_bytes", lambda values: int(max(values))),
    ("power_mean_w", "power_w", fmean),
    ("power_max_w", "power_w", max),
    ("temperature_max_c", "temperature_c", max),
)


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
    """A number that the target reported, or that was read from its output (``source``: ``printed: line 312``).

    ``best`` only if its name shows the better direction. ``ended_as``: nan or inf, if that came after the last number.
    """

    name: str
    first: float
    last: float
    best: float | None = None
    reports: int
    source: str | None = None
    unit: str = ""
    ended_as: str | None = None

    def figure(self, value: float) -> str:
        shown = format_bytes(value) if self.name.endswith("_bytes") and value >= 0 else figure(value)
        return shown + (f" {self.unit}" if self.unit else "")


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


class JaxUse(Record):
    """JAX's own report: its platforms, and number and time of XLA's compilations."""

    version: str
    backends: tuple[str, ...] = ()
    compiled: int = 0
    compile_s: float = 0.0


class Measurements(Record):
    """The measurements.

    Attributes:
        wall_s: of the target. startup_s: from the first event to the target's start. window_start_s, window_s: the
            training window (evidence.py defines it), since the first event.
        energy_j: of all GPUs. energy_from: ``counter`` (the GPU's own) or ``power`` (samples, integrated).
        memory_peak_bytes: of the container, or of the target's processes if there is none.
        images, images_per_s: of training, as the target counted them.
        planned_work: ``60 epochs``, where the script printed ``epoch 46/60``.
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
    planned_work: str | None = None
    gpu_memory: GpuMemory | None = None
    jax: JaxUse | None = None

    @property
    def window(self) -> tuple[float, float] | None:
        """Return the begin and the end of the training window."""
        if self.window_start_s is None or self.window_s is None:
            return None
        return self.window_start_s, self.window_start_s + self.window_s


class MeasuredSection(Section):
    title = "Measured"

    def read(self, run: RunEvidence) -> dict[str, Any]:
        return {"measurements": run.measurements}

    def blocks(self, receipt: Receipt) -> list[Block]:
        measured, names = receipt.measurements, gpu_names(receipt.header.gpus)
        started = measured.startup_s is not None and f", after {format_seconds(measured.startup_s)} of start-up"
        integrated = ", integrated from power samples" if measured.energy_from == "power" else ""
        begins = f" from {measured.window_begins}, {count(measured.samples, 'sample')}"
        total = f", {figure(measured.images)} examples in all" if measured.images else ""
        mean, most, per_s = measured.cpu_cores_mean, measured.cpu_cores_max, measured.images_per_s
        rows: list[tuple[str, str | bool | None]] = [
            ("wall time", measured.wall_s is not None and format_seconds(measured.wall_s) + (started or "")),
            ("window", measured.window_s is not None and format_seconds(measured.window_s) + begins),
            *[row for use in measured.gpus for row in _gpu_rows(names.get(use.uuid, use.uuid), use)],
            ("GPU memory limit", measured.gpu_memory is not None and _limit(measured.gpu_memory)),
            ("JAX", measured.jax is not None and _jax(measured.jax)),
            ("energy", measured.energy_j is not None and energy(measured.energy_j) + integrated),
            ("CPU", mean is not None and most is not None and f"mean {mean:.2f} cores, max {most:.2f}"),
            ("memory", _share("peak of the whole run", measured.memory_peak_bytes, measured.memory_limit_bytes)),
            ("/dev/shm", _share("peak of the run's samples", measured.shm_peak_bytes, measured.shm_total_bytes)),
            ("throughput", per_s is not None and f"{figure(round(per_s, 1))} examples/s{total}"),
        ]
        blocks: list[Block] = [Rows([Row(label, str(value)) for label, value in rows if value])]
        if measured.metrics:
            metrics = [Row(metric.name, _metric_words(metric)) for metric in measured.metrics]
            blocks.append(Rows(metrics, "Reported by the script", MAX_METRICS))
        return blocks


def _jax(used: JaxUse) -> str:
    """Return ``12 compilations took 3.2 s; on cuda``."""
    parts = [f"{count(used.compiled, 'compilation')} took {format_seconds(used.compile_s)}"] if used.compiled else []
    parts += [f"on {', '.join(used.backends)}"] if used.backends else []
    return "; ".join(parts)


def _gpu_rows(name: str, use: GpuUse) -> list[tuple[str, str | bool | None]]:
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


def _limit(memory: GpuMemory) -> str:
    limit = format_bytes(memory.limit_bytes)
    if memory.failed:
        return f"limit of {limit} not enforced: {memory.failed}"
    if not memory.frameworks:
        return f"{limit} for each process; no process that got it started a GPU"
    names = " and ".join(memory.frameworks)
    if memory.peak_bytes is None:
        return f"{limit}, given to {names}; no peak was reported"
    return f"peak {format_bytes(memory.peak_bytes)} of {limit}, as {names} counted; CUDA's own is on top"


def _metric_words(metric: Metric) -> str:
    last = (f"{metric.ended_as}, after " if metric.ended_as else "") + metric.figure(metric.last)
    if metric.reports == 1:
        return last + (f" ({metric.source})" if metric.source else "")
    best = f"best {metric.figure(metric.best)}, " if metric.best is not None else ""
    reports = (metric.source or "reports").replace("printed: line", "printed, the last on line")
    return f"{last} ({best}first {metric.figure(metric.first)}, {metric.reports} {reports})"


def _share(words: str, part: int | None, whole: int | None) -> str | None:
    if part is None:
        return None
    share = f", {percent(100 * part / whole)} of {format_bytes(whole)}" if whole else ""
    return f"{words} {format_bytes(part)}{share}"


def measure(
    evidence: Evidence, uuids: Sequence[str], gpu_memory_bytes: int | None = None, printed: Printed | None = None
) -> Measurements:
    """Measure the run; GPUs in the order of ``uuids``, those in the plan. ``gpu_memory_bytes``: its limit."""
    printed = printed or Printed()
    own_words, work = printed.complement(evidence.steps, own=bool(evidence.written)), printed.progress
    started, window = evidence.target_started, evidence.window
    samples = [s for s in evidence.samples if window and window.start_s <= s.at_s <= window.end_s]
    energy_j, energy_from = _joules(evidence, uuids)
    cpu_cores = _values(samples, "cpu_cores")
    rss_bytes = evidence.exited.number("max_rss_bytes") if evidence.exited else None
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
        cpu_cores_mean=fmean(cpu_cores) if cpu_cores else None,
        cpu_cores_max=max(cpu_cores, default=None),
        memory_peak_bytes=_top([*_values(evidence.samples, "memory_bytes"), *([rss_bytes] if rss_bytes else [])]),
        memory_limit_bytes=_memory_limit(evidence),
        shm_peak_bytes=_top(_values(evidence.samples, "shm_used_bytes")),
        shm_total_bytes=_top(_values(evidence.samples, "shm_total_bytes")),
        images=evidence.steps.images,
        images_per_s=evidence.steps.images_per_s,
        metrics=(
            *(_metric(name, points) for name, points in evidence.steps.series.items()),
            *(_printed(name, series) for name, series in own_words.items()),
        ),
        planned_work=count(work.total, work.unit) if work.total else None,
        gpu_memory=_gpu_memory(evidence, gpu_memory_bytes),
        jax=_jax_use(evidence),
    )


def _gpu_use(samples: Sequence[SampleFacts], uuid: str) -> GpuUse:
    readings = [sample.gpus[uuid] for sample in samples if uuid in sample.gpus]
    found: dict[str, Any] = {}
    for name, key, of_all in _OF_GPUS:
        values = [reading[key] for reading in readings if key in reading]
        found[name] = of_all(values) if values else None
    reasons = {name for sample in samples for name in sample.throttled.get(uuid, ())}
    return GpuUse(uuid=uuid, samples=len(readings), **found, throttled=tuple(sorted(reasons)))


def _joules(evidence: Evidence, uuids: Sequence[str]) -> tuple[float | None, Literal["counter", "power"] | None]:
    """Return the energy of all GPUs: the agents' own difference, else of the samples' counters, else from power."""
    reported = [mapping(finished.keys.get("energy_j")) for finished in evidence.all(AgentFinished)]
    counted = [total(number(each.get(uuid)) for each in reported if uuid in each) for uuid in uuids]
    if None in counted:
        counters = [
            [s.gpus[uuid]["energy_j"] for s in evidence.samples if "energy_j" in s.gpus.get(uuid, {})] for uuid in uuids
        ]
        counted = [each[-1] - each[0] if len(each) > 1 else None for each in counters]
    if all(joules is not None and joules >= 0 for joules in counted) and uuids:
        return total(counted), "counter"
    integrals = total(integrated(evidence.power(uuid)) for uuid in uuids)
    return integrals, None if integrals is None else "power"


def total(values: Iterable[float | None]) -> float | None:
    """Add the values; None if one is unknown, or if there are none."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def integrated(watts: Sequence[Point]) -> float | None:
    """Integrate watts over seconds by the trapezoidal rule; None with fewer than two samples."""
    return sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in pairwise(watts)) if len(watts) > 1 else None


def _memory_limit(evidence: Evidence) -> int | None:
    """Return the samples' limit, else, for a run too short to have one, the agent's reading at its start."""
    started = evidence.first(AgentStarted)
    at_start = number(mapping(started.keys.get("cgroup")).get("memory_limit_bytes")) if started else None
    return _top(_values(evidence.samples, "memory_limit_bytes") or ([at_start] if at_start else []))


def direction(name: str) -> int:
    """Return 1 if more of a metric is better, -1 if less is, 0 if its name does not show it."""
    words = {word for each in re.findall("[a-z0-9]+", name.lower()) for word in (each, each.rstrip("0123456789"))}
    return -1 if words & LOWER_IS_BETTER else 1 if words & HIGHER_IS_BETTER else 0


def _metric(name: str, points: Sequence[Point]) -> Metric:
    values = [y for _, y in points]
    best = {-1: min(values), 1: max(values)}.get(direction(name))
    return Metric(name=name, first=values[0], last=values[-1], best=best, reports=len(values))


def _printed(name: str, series: PrintedSeries) -> Metric:
    source = f"printed: line {series.line}" if series.line else "printed"
    source += " of stderr" * (series.stream == "stderr")
    metric = _metric(name, series.points)
    return metric.changed(reports=series.count, source=source, unit=series.unit, ended_as=series.ended_as)


def _values(samples: Iterable[SampleFacts], key: str) -> list[float]:
    return [sample.host[key] for sample in samples if key in sample.host]


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
    peak = _top([peak for peak in values if peak is not None and peak >= 0])
    failed = next((reason for line in lines if (reason := text(line.get("failed")))), None)
    frameworks = tuple(dict.fromkeys(names))
    return GpuMemory(limit_bytes=limit_bytes, frameworks=frameworks, peak_bytes=peak, failed=failed)


def _jax_use(evidence: Evidence) -> JaxUse | None:
    """Read the hook's line about JAX, which the target could write, too; of several processes the busiest."""
    lines = [facts for keys in evidence.hook_lines if text((facts := mapping(keys.get(FACTS))).get("jax"))]
    uses = [
        JaxUse(
            version=str(text(facts["jax"]))[:40],
            backends=tuple(str(each)[:20] for each in items(facts.get("jax_backends"))[:_MOST_BACKENDS]),
            compiled=int(number(facts.get("jax_compiled")) or 0),
            compile_s=number(facts.get("jax_compile_s")) or 0.0,
        )
        for facts in lines
    ]
    return max(reversed(uses), key=lambda use: use.compiled, default=None)
