"""The receipt in a few words: its heading, its sentence, and the few numbers that a reader wants first."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from seatrial.job.units import format_seconds
from seatrial.receipt.model import Receipt
from seatrial.receipt.reported import headline_metrics
from seatrial.receipt.section import Row
from seatrial.receipt.sections.trust import ALTERABLE
from seatrial.receipt.sections.what_ran import device_in_words
from seatrial.receipt.values import energy_short, figure, percent, rate

_Tile = tuple[str, float | None, Callable[[float], str]]


def headline(receipt: Receipt) -> str:
    """Return ``mnist · docker · 1 × NVIDIA H200``."""
    header = receipt.header
    tuned = " · tuned" if receipt.changes is not None and receipt.changes.applied else ""
    return f"{header.target} · {header.backend} · {device_in_words(header)}{tuned}"


def ending(receipt: Receipt) -> str:
    """Return ``Passed. Finished in 33 s; 5 criteria met``."""
    return receipt.outcome.sentence + exit_words(receipt)


def exit_words(receipt: Receipt) -> str:
    """Return `` (seatrial exits with 1)``; "" for an exit code of 0 that nothing would change."""
    footnote = receipt.outcome.footnote
    if not receipt.exit_code and not footnote:
        return ""
    return f" (seatrial exits with {receipt.exit_code}{f'; {footnote}' if footnote else ''})"


def warnings(receipt: Receipt) -> list[str]:
    """Return the warnings to show. Each local run's evidence could be altered: the row about evidence has that."""
    usual = receipt.header.backend == "local"
    return [warning for warning in receipt.warnings if not (usual and warning.startswith(ALTERABLE))]


def numbers(receipt: Receipt) -> list[str]:
    """Return three at most: how long, how well, how busy or how fast."""
    measured = receipt.measurements
    found = [] if measured.wall_s is None else [format_seconds(measured.wall_s)]
    metrics = {metric.name: metric for metric in measured.metrics}
    required = [c.id.removeprefix("metric-") for c in receipt.criteria if c.id.startswith("metric-")]
    name = next((name for name in (*required, *reversed(headline_metrics(metrics))) if name in metrics), None)
    if name is not None:
        found.append(f"{name} {metrics[name].last:.4g}" + (" %" if metrics[name].unit else ""))
    busy = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    steps = [each.examples_per_s for each in receipt.anatomy if each.examples_per_s]
    if busy:
        found.append(f"GPU {percent(sum(busy) / len(busy))} busy")
    elif measured.images_per_s:
        found.append(f"{measured.images_per_s:,.0f} examples/s")
    elif steps:
        found.append(f"{sum(steps):,.0f} examples/s")
    return found


def tiles(receipt: Receipt) -> list[Row]:
    """Return the first numbers of a page; of several GPUs their mean."""
    measured, serving = receipt.measurements, receipt.serving
    utilization = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    sm_activity = [use.sm_activity_mean_pct for use in measured.gpus if use.sm_activity_mean_pct is not None]
    last = {metric.name: metric.last for metric in measured.metrics}
    units = {metric.name: f", {metric.unit}" for metric in measured.metrics if metric.unit}
    loss, accuracy = headline_metrics(last)
    steps = receipt.anatomy[0] if receipt.anatomy else None
    of_rank = ", rank 0" if len(receipt.anatomy) > 1 else ""
    served: list[_Tile] = []
    if serving is not None and serving.reported:
        served = [
            (name, value, "{:.3g} ms".format) for name, value in (("p50", serving.p50_ms), ("p99", serving.p99_ms))
        ]
        served = [("requests", serving.requests, figure), *served]
        served.append(("for 1,000 requests", serving.joules_per_1000, energy_short))
    found: list[_Tile] = [
        (accuracy.replace("_", " ") + units.get(accuracy, ""), last.get(accuracy), _four_digits),
        (loss.replace("_", " "), last.get(loss), _four_digits),
        ("wall time", measured.wall_s, format_seconds),
        ("GPU utilisation", fmean(utilization) if utilization else None, percent),
        ("SM activity", fmean(sm_activity) if sm_activity else None, percent),
        *served,
        (f"steps/s{of_rank}", steps.steps_per_s if steps else None, rate),
        (f"examples/s{of_rank}", steps.examples_per_s if steps else None, rate),
        ("examples/s", measured.images_per_s, lambda value: figure(round(value))),
        ("energy", measured.energy_j, energy_short),
    ]
    return [Row(label, words(value)) for label, value, words in found if value is not None]


def _four_digits(value: float) -> str:
    return figure(float(f"{value:.4g}"))
