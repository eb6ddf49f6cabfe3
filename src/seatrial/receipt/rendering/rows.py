"""The receipt's facts as labelled lines: the same words in the terminal, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.findings.finding import FIX
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.formatting import count, energy, energy_short, figure, gpu_names, metric_figure, percent, rate
from seatrial.receipt.model import (
    Criterion,
    GpuMemory,
    GpuUse,
    JaxUse,
    Measurements,
    Metric,
    Receipt,
    ReceiptGpu,
    Seal,
    ServingRecord,
)
from seatrial.receipt.rendering.row import Row as Row
from seatrial.receipt.rendering.tuning import changes_row

_INJECTION = {
    "none": "none",
    "nvidia-runtime": "--gpus (NVIDIA container runtime)",
    "cdi": "CDI",
    "device-nodes": "device nodes and the driver's libraries",
    "host": "a process on the host",
    "resource-claim": "a resource claim of each pod",
}

#: Of a container that fails for hours, the last ones tell enough.
_MAX_STARTS = 8

_DEVICE = {"cpu": "the CPU, as requested", "cpu-fallback": "the CPU: no GPU was found"}


def headline(receipt: Receipt) -> str:
    """``mnist · docker · 1 × NVIDIA H200``."""
    header = receipt.header
    tuned = " · tuned" if receipt.changes is not None and receipt.changes.applied else ""
    return f"{header.target} · {header.backend} · {device(receipt)}{tuned}"


def ending(receipt: Receipt) -> str:
    """``Passed. Finished in 33 s; 5 criteria met (seatrial exits with 0)``."""
    outcome = receipt.outcome
    also = f"; {outcome.footnote}" if outcome.footnote else ""
    return f"{outcome.sentence} (seatrial exits with {receipt.exit_code}{also})"


def wanted(criterion: Criterion) -> str:
    """What it expects, and whose wish that is: ``required: …``, or ``default: …``, which nobody asked for."""
    word = "default" if criterion.asked is False else "required"
    return f"{word}: {criterion.expected}" if criterion.expected else ""


def open_criteria(receipt: Receipt) -> list[tuple[str, list[str]]]:
    """(why, titles) of the criteria that were not judged, those of one reason together: there is nothing to look at."""
    reasons: dict[str, list[str]] = {}
    for criterion in receipt.criteria:
        if criterion.verdict == "not judged":
            reasons.setdefault(criterion.evidence, []).append(criterion.title)
    return list(reasons.items())


def device(receipt: Receipt) -> str:
    """``2 × NVIDIA H200``; of GPUs that no pod came to name, how many were asked for."""
    gpus, asked = receipt.header.gpus, receipt.header.gpus_asked
    if receipt.header.device != "gpu":
        return "CPU (no GPU found)" if receipt.header.device == "cpu-fallback" else "CPU"
    if not gpus:
        return f"{count(asked, 'GPU')} requested, none reported" if asked else "GPU"
    names = dict.fromkeys(gpu.name for gpu in gpus)
    told = ", ".join(f"{sum(gpu.name == name for gpu in gpus)} × {name}" for name in names)
    return told if not asked or asked <= len(gpus) else f"{told} ({asked} requested)"


def header_rows(receipt: Receipt) -> list[Row]:
    """What ran, on what; rows with nothing known are left out."""
    header, names = receipt.header, gpu_names(receipt.header.gpus)
    rows = [
        ("target", header.target),
        ("run", header.run_id + (f" ({header.name})" if header.name else "")),
        ("commit", header.git_commit),
        ("where", header.backend + (f" on {header.host}" if header.host else "")),
        ("node", header.part),
        ("device", _DEVICE.get(header.device)),
        ("GPUs", device(receipt) if header.device == "gpu" and len(header.gpus) < (header.gpus_asked or 0) else None),
        *[(names[gpu.uuid], _gpu(gpu)) for gpu in header.gpus],
        ("GPU access", _INJECTION.get(header.injection, header.injection) if header.gpus else None),
        ("driver", _join(header.driver, header.cuda and f"CUDA up to {header.cuda}")),
        ("framework", _join(header.framework, header.framework_cuda and f"built for CUDA {header.framework_cuda}")),
        ("Python", header.python),
        ("starts", _starts(header.earlier_starts)),
        ("evidence", _evidence(receipt.seal) if receipt.seal else None),
    ]
    if (changes := changes_row(receipt)) is not None:
        rows.append(changes)
    if image := header.image:
        rows.append(("image", _join(image.tag, format_bytes(image.size_bytes) if image.size_bytes else None)))
        rows.append(("digest", image.digest))
    return [Row(label, value) for label, value in rows if value]


def _starts(earlier: Sequence[int | None]) -> str | None:
    """``3: started again by the engine after exit codes 5, 5``; nothing of one that was started once."""
    if not earlier:
        return None
    shown = ["…"] if len(earlier) > _MAX_STARTS else []
    shown += ["a kill" if code is None else f"exit code {code}" for code in earlier[-_MAX_STARTS:]]
    return f"{len(earlier) + 1}: started again by the engine after {', '.join(shown)}"


def _evidence(seal: Seal) -> str:
    """How much there is and what it is worth."""
    chained = f"chained, digest {seal.digest[:16]}" if seal.digest else "still open"
    told = [count(seal.lines, "line"), f"broken at line {seal.broken_at}" if seal.broken_at else chained]
    told += [f"{seal.missing} missing"] if seal.missing else []
    told += ["could be altered by the target"] if seal.alterable else ["not accessible to the target"]
    told += [f"the host observed the run on {seal.witnessed}"] if seal.witnessed else []
    return "; ".join(told)


def measured_rows(receipt: Receipt) -> list[Row]:
    """What was measured; rows with nothing measured are left out."""
    measured, names = receipt.measurements, gpu_names(receipt.header.gpus)
    rows = [
        ("wall time", _wall(measured)),
        ("window", _window(measured)),
        *[row for use in measured.gpus for row in _gpu_rows(names.get(use.uuid, use.uuid), use)],
        ("GPU memory limit", _limit(measured.gpu_memory)),
        ("JAX", _jax(measured.jax)),
        ("energy", _energy(measured)),
        ("CPU", _cpu(measured)),
        ("memory", _of("peak of the whole run", measured.memory_peak_bytes, measured.memory_limit_bytes)),
        ("/dev/shm", _of("peak of the run's samples", measured.shm_peak_bytes, measured.shm_total_bytes)),
        ("throughput", _throughput(measured)),
    ]
    return [Row(label, value) for label, value in rows if value]


def _jax(used: JaxUse | None) -> str | None:
    """``train_step called 4,210 times, 812 a second; 12 compilations took 3.2 s; on cuda``."""
    if used is None:
        return None
    told = [
        f"{each.name} called {count(each.calls, 'time')}"
        + (f", {rate(each.calls_per_s)}/s" if each.calls_per_s else "")
        for each in used.functions
    ]
    told += [f"{count(used.compiled, 'compilation')} took {format_seconds(used.compile_s)}"] if used.compiled else []
    return "; ".join([*told, f"on {', '.join(used.backends)}"] if used.backends else told) or None


def serving_rows(receipt: Receipt) -> list[Row]:
    """What was served, how much and how fast; [] for a run that served nothing."""
    serving = receipt.serving
    if serving is None:
        return []
    rows = [
        ("model", serving.model + (f" ({serving.source})" if serving.source != serving.model else "")),
        ("made by", serving.of_run and f"run {serving.of_run}"),
        *[("weights", f"{each.path}, {format_bytes(each.bytes)}, {each.digest}") for each in serving.weights],
        ("address", serving.url),
        ("warm-up", _warm_up(serving)),
        ("requests", _requests(serving)),
        ("errors", _errors(serving)),
        ("latency", _latency(serving)),
        ("batches", _batches(serving)),
        ("energy", _per_1000(serving)),
        ("counted by", "the server itself; GPU use and energy by the agent" if serving.reported else None),
    ]
    return [Row(label, value) for label, value in rows if value]


def _warm_up(serving: ServingRecord) -> str | None:
    if not serving.reported or serving.examples is None:
        return None
    if not serving.examples:
        return "no saved outputs to compare with"
    loaded = "" if serving.warm_up_s is None else f"{format_seconds(serving.warm_up_s)}; "
    compared = f"{loaded}{count(serving.examples, 'saved input')} compared with their saved outputs"
    if serving.largest_difference is None:
        return compared
    return f"{compared}, largest difference {serving.largest_difference:.3g}"


def _requests(serving: ServingRecord) -> str:
    if not serving.reported:
        return "the server told no count: it was not ready, or its reports did not arrive"
    often = f", {rate(serving.requests / serving.seconds)} a second" if serving.seconds > 0 else ""
    return f"{figure(serving.requests)} in {format_seconds(serving.seconds)}{often}"


def _errors(serving: ServingRecord) -> str | None:
    if not serving.reported:
        return None
    told = ", ".join(f"{count} × {status}" for status, count in serving.errors.items())
    return told or "none"


def _latency(serving: ServingRecord) -> str | None:
    named = (("p50", serving.p50_ms), ("p95", serving.p95_ms), ("p99", serving.p99_ms))
    return ", ".join(f"{name} {value:.3g} ms" for name, value in named if value is not None) or None


def _batches(serving: ServingRecord) -> str | None:
    total = sum(each.batches for each in serving.batches)
    if not total:
        return None
    rows = sum(each.rows * each.batches for each in serving.batches)
    most = max(serving.batches, key=lambda each: each.batches)
    peak = f", at most {figure(serving.queue_peak)} rows waiting" if serving.queue_peak is not None else ""
    share = percent(100 * most.batches / total)
    return f"{figure(total)}, {rows / total:.1f} rows each on average, most often {most.rows} ({share}){peak}"


def _per_1000(serving: ServingRecord) -> str | None:
    if serving.energy_j is None:
        return None
    each = "" if serving.joules_per_1000 is None else f", {energy_short(serving.joules_per_1000)} for 1,000 requests"
    return f"{energy(serving.energy_j)} of the GPUs while it served{each}"


def diagnosis_rows(receipt: Receipt) -> list[Row]:
    """What bounded the run, what that rests on and what would help; [] where nothing could be told."""
    diagnosis = receipt.diagnosis
    if diagnosis is None:
        return []
    rows = [Row("bound by", diagnosis.words + (f" ({', '.join(diagnosis.tags)})" if diagnosis.tags else ""))]
    rows += [Row("seen", line) for line in diagnosis.evidence]
    if diagnosis.mfu is not None:
        rows.append(Row("MFU", f"{percent(100 * diagnosis.mfu)} of the GPUs' peak in bf16"))
    return rows + [Row(FIX, f"{advice.change} ({advice.gain})") for advice in diagnosis.advice]


def metric_rows(receipt: Receipt) -> list[Row]:
    """Last, best and first value of each number the target reported."""
    return [Row(metric.name, _metric(metric)) for metric in receipt.measurements.metrics]


def _gpu(gpu: ReceiptGpu) -> str:
    return ", ".join([gpu.name, format_bytes(gpu.memory_bytes), gpu.uuid])


def _gpu_rows(name: str, use: GpuUse) -> list[tuple[str, str | None]]:
    busy = [
        f"{label} {percent(value)}"
        for label, value in (
            ("utilisation mean", use.utilization_mean_pct),
            ("max", use.utilization_max_pct),
            ("SM activity", use.sm_activity_mean_pct),
            ("tensor", use.tensor_activity_mean_pct),
            ("DRAM", use.dram_activity_mean_pct),
        )
        if value is not None
    ]
    power = [
        words
        for words in (
            use.power_mean_w is not None and f"mean {use.power_mean_w:.0f} W",
            use.power_max_w is not None and f"max {use.power_max_w:.0f} W",
            use.temperature_max_c is not None and f"{use.temperature_max_c:.0f} °C max",
            use.throttled and f"throttled: {', '.join(use.throttled)}",
        )
        if words
    ]
    return [
        (f"{name} busy", ", ".join(busy)),
        (f"{name} memory", _of("peak of the window's samples", use.memory_peak_bytes, use.memory_total_bytes)),
        (f"{name} power", ", ".join(power)),
    ]


def _limit(memory: GpuMemory | None) -> str | None:
    if memory is None:
        return None
    limit = format_bytes(memory.limit_bytes)
    if memory.failed:
        return f"{limit} were asked for and not held: {memory.failed}"
    if not memory.frameworks:
        return f"{limit} for each process; none that was told of it started a GPU"
    names = " and ".join(memory.frameworks)
    if memory.peak_bytes is None:
        return f"{limit}, given to {names}; the peak was not told"
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


def _metric(metric: Metric) -> str:
    if metric.reports == 1:
        return metric_figure(metric.name, metric.last)
    best = f"best {metric_figure(metric.name, metric.best)}, " if metric.best is not None else ""
    last, first = metric_figure(metric.name, metric.last), metric_figure(metric.name, metric.first)
    return f"{last} ({best}first {first}, {metric.reports} reports)"


def _of(words: str, part: int | None, whole: int | None) -> str | None:
    if part is None:
        return None
    return f"{words} {format_bytes(part)}" + (
        f", {percent(100 * part / whole)} of {format_bytes(whole)}" if whole else ""
    )


def _join(*parts: str | None) -> str | None:
    return ", ".join(part for part in parts if part) or None
