"""The receipt as one HTML file: no script, nothing loaded, light or dark as the reader's system is.

Everything a run printed or named is escaped; docs/decisions/0004-receipt-plots.md says why the plots are drawn here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from statistics import fmean

from seatrial.diagnosis.anatomy import REGIONS
from seatrial.job.units import format_seconds
from seatrial.receipt.formatting import energy_short, figure, percent, rate
from seatrial.receipt.model import STEPS_PLOT, Receipt
from seatrial.receipt.rendering.anatomy import anatomy_rows, bar_parts
from seatrial.receipt.rendering.bars import draw_batches
from seatrial.receipt.rendering.pages import render_page
from seatrial.receipt.rendering.rows import (
    Row,
    diagnosis_rows,
    header_rows,
    headline,
    measured_rows,
    metric_rows,
    open_criteria,
    serving_rows,
    wanted,
)
from seatrial.receipt.rendering.stack import can_be_stacked, draw_stack
from seatrial.receipt.rendering.tuning import HEAD, tune_rows, tune_table

_VERDICTS = {
    "pass": ("pass", "✓ pass"),
    "fail": ("fail", "✗ fail"),
    "warning": ("warning", "! warning"),
    "not judged": ("none", "not judged"),
}
#: Level of an outcome → the badge's class, and the mark before its words.
_LEVELS = {"good": ("pass", "✓ "), "bad": ("fail", "✗ "), "warning": ("warning", "! "), "none": ("none", "")}


def render(receipt: Receipt) -> str:
    """The whole page."""
    start_s, seconds = receipt.measurements.window_start_s, receipt.measurements.window_s
    window = None if start_s is None or seconds is None else (start_s, start_s + seconds)
    stacked = [plot for plot in receipt.plots if receipt.anatomy and plot.id == STEPS_PLOT and can_be_stacked(plot)]
    bar = bar_parts(receipt)
    fine = [part for part in bar if part.words in (REGIONS["copy"], REGIONS["sync"])]
    return render_page(
        "receipt.html",
        receipt=receipt,
        headline=headline(receipt),
        judged_at=datetime.fromtimestamp(receipt.header.judged_at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        verdicts=_VERDICTS,
        level=_LEVELS[receipt.outcome.level],
        wanted=wanted,
        tiles=_tiles(receipt),
        window=window,
        plots=[plot for plot in receipt.plots if plot not in stacked],
        stack=draw_stack(stacked[0]) if stacked else None,
        coarse=bool(stacked) and any(part.words not in {line.name for line in stacked[0].lines} for part in fine),
        open_criteria=open_criteria(receipt),
        shaded=window is not None and any(plot.x == "seconds" for plot in receipt.plots),
        serving=list(serving_rows(receipt)),
        histogram=draw_batches(receipt.serving.batches) if receipt.serving and receipt.serving.batches else "",
        served=receipt.serving is not None,
        diagnosis=list(diagnosis_rows(receipt)),
        tune_head=HEAD,
        tune_table=tune_table(receipt),
        tune=tune_rows(receipt),
        bar=bar,
        steps=anatomy_rows(receipt, drawn=True),
        measured=list(measured_rows(receipt)),
        metrics=list(metric_rows(receipt)),
        what_ran=list(header_rows(receipt)),
    )


Tile = tuple[str, float | None, Callable[[float], str]]


def _serving_tiles(receipt: Receipt) -> list[Tile]:
    serving = receipt.serving
    if serving is None or not serving.reported:
        return []
    return [
        ("requests", serving.requests, figure),
        ("p50", serving.p50_ms, lambda value: f"{value:.3g} ms"),
        ("p99", serving.p99_ms, lambda value: f"{value:.3g} ms"),
        ("for 1,000 requests", serving.joules_per_1000, energy_short),
    ]


def _tiles(receipt: Receipt) -> list[Row]:
    """The few numbers one looks for first; of several GPUs their mean."""
    measured = receipt.measurements
    utilization = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    sm_activity = [use.sm_activity_mean_pct for use in measured.gpus if use.sm_activity_mean_pct is not None]
    accuracy = next((m for m in measured.metrics if m.name in ("test_accuracy", "accuracy", "val_accuracy")), None)
    steps = receipt.anatomy[0] if receipt.anatomy else None
    of_rank = ", rank 0" if len(receipt.anatomy) > 1 else ""
    tiles: list[Tile] = [
        ("wall time", measured.wall_s, format_seconds),
        ("GPU utilisation", fmean(utilization) if utilization else None, percent),
        ("SM activity", fmean(sm_activity) if sm_activity else None, percent),
        *_serving_tiles(receipt),
        (f"steps/s{of_rank}", steps.steps_per_s if steps else None, rate),
        (f"examples/s{of_rank}", steps.examples_per_s if steps else None, rate),
        ("images/s", measured.images_per_s, lambda value: figure(round(value))),
        (accuracy.name.replace("_", " ") if accuracy else "", accuracy.last if accuracy else None, figure),
        ("energy", measured.energy_j, energy_short),
    ]
    return [Row(label, words(value)) for label, value, words in tiles if value is not None]
