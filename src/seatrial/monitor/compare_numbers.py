"""The numbers that runs are compared by, each with its place in a receipt, its words and its better direction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.model import Receipt
from seatrial.receipt.sections.measured import GpuUse, Metric, direction
from seatrial.receipt.sections.steps import StepAnatomy
from seatrial.receipt.values import energy_short, percent, rate

Read = Callable[[Receipt], float | None]
Words = Callable[[float], str]

_PHASE = re.compile(r"^(?:train|test|val|valid|eval|end)_")


@dataclass(frozen=True)
class ComparedNumber:
    """One number of a run. ``direction``: 1 if more is better, -1 if less is. ``measured``: it has noise."""

    label: str
    read: Read
    words: Words
    direction: int = 0
    measured: bool = True


def readings(runs: Sequence[Receipt]) -> Iterator[ComparedNumber]:
    """Yield the scripts' own numbers first, then the measured ones."""
    every = [metric for receipt in runs for metric in receipt.measurements.metrics]
    for metric in {(metric.name, metric.unit): metric for metric in every}.values():
        better = direction(metric.name) or int(metric.name.endswith("_per_s"))
        for which, value in (("last", lambda one: float(one.ended_as or one.last)), ("best", lambda one: one.best)):
            read = _metric(metric.name, metric.unit, value)
            yield ComparedNumber(f"{metric.name}, {which}", read, metric.figure, better, measured=False)
    yield from _MEASURED
    for part in dict.fromkeys(part.words for receipt in runs for one in receipt.anatomy[:1] for part in one.parts):
        yield ComparedNumber(f"time in {part}", _share(part), percent)


def stem(label: str) -> str:
    """Return a number's name without its phase and remark: ``accuracy`` of ``test_accuracy, best``."""
    return _PHASE.sub("", label.partition(",")[0])


def _metric(name: str, unit: str, value: Callable[[Metric], float | None]) -> Read:
    def read(receipt: Receipt) -> float | None:
        metrics = receipt.measurements.metrics
        return next((value(metric) for metric in metrics if (metric.name, metric.unit) == (name, unit)), None)

    return read


def _gpu_mean(read: Callable[[GpuUse], float | None]) -> Read:
    def mean(receipt: Receipt) -> float | None:
        values = [value for use in receipt.measurements.gpus if (value := read(use)) is not None]
        return fmean(values) if values else None

    return mean


def _steps(read: Callable[[StepAnatomy], float | None]) -> Read:
    return lambda receipt: read(receipt.anatomy[0]) if receipt.anatomy else None


def _share(part: str) -> Read:
    def read(receipt: Receipt) -> float | None:
        parts = receipt.anatomy[0].parts if receipt.anatomy else ()
        return next((100 * each.share for each in parts if each.words == part), None)

    return read


def _bytes(value: float) -> str:
    return format_bytes(int(value))


_MEASURED = (
    ComparedNumber("wall time", lambda r: r.measurements.wall_s, format_seconds, -1),
    ComparedNumber("start-up", lambda r: r.measurements.startup_s, format_seconds, -1),
    ComparedNumber("steps/s", _steps(lambda one: one.steps_per_s), rate, 1),
    ComparedNumber("examples/s", _steps(lambda one: one.examples_per_s), rate, 1),
    ComparedNumber("images/s", lambda r: r.measurements.images_per_s, rate, 1),
    ComparedNumber("utilisation", _gpu_mean(lambda use: use.utilization_mean_pct), percent, 1),
    ComparedNumber("SM activity", _gpu_mean(lambda use: use.sm_activity_mean_pct), percent, 1),
    ComparedNumber("tensor activity", _gpu_mean(lambda use: use.tensor_activity_mean_pct), percent, 1),
    ComparedNumber("DRAM activity", _gpu_mean(lambda use: use.dram_activity_mean_pct), percent),
    ComparedNumber("GPU memory, peak", _gpu_mean(lambda use: use.memory_peak_bytes), _bytes),
    ComparedNumber("power, mean", _gpu_mean(lambda use: use.power_mean_w), lambda value: f"{value:.0f} W"),
    ComparedNumber("MFU", lambda r: 100 * r.diagnosis.mfu if r.diagnosis and r.diagnosis.mfu else None, percent, 1),
    ComparedNumber("energy", lambda r: r.measurements.energy_j, energy_short, -1),
    ComparedNumber("CPU, mean", lambda r: r.measurements.cpu_cores_mean, lambda value: f"{value:.2f} cores"),
    ComparedNumber("memory, peak", lambda r: r.measurements.memory_peak_bytes, _bytes),
)
