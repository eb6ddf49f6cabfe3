"""The receipt as one HTML file: no script, nothing loaded, light or dark as the reader's system is.

Everything a run printed or named is escaped; docs/decisions/0004-receipt-plots.md says why the plots are drawn here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from statistics import fmean

from seatrial.job.units import format_seconds
from seatrial.receipt.formatting import energy_short, figure, percent
from seatrial.receipt.model import Receipt
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
    serving_rows,
)
from seatrial.receipt.rendering.tuning import HEAD, tune_rows, tune_table

_VERDICTS = {"pass": ("pass", "✓ pass"), "fail": ("fail", "✗ fail"), "not judged": ("none", "not judged")}


def render(receipt: Receipt) -> str:
    """The whole page."""
    start_s, seconds = receipt.measurements.window_start_s, receipt.measurements.window_s
    window = None if start_s is None or seconds is None else (start_s, start_s + seconds)
    return render_page(
        "receipt.html",
        receipt=receipt,
        headline=headline(receipt),
        judged_at=datetime.fromtimestamp(receipt.header.judged_at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        verdicts=_VERDICTS,
        tiles=_tiles(receipt),
        window=window,
        shaded=window is not None and any(plot.x == "seconds" for plot in receipt.plots),
        serving=list(serving_rows(receipt)),
        histogram=draw_batches(receipt.serving.batches) if receipt.serving and receipt.serving.batches else "",
        served=receipt.serving is not None,
        diagnosis=list(diagnosis_rows(receipt)),
        tune_head=HEAD,
        tune_table=tune_table(receipt),
        tune=tune_rows(receipt),
        bar=bar_parts(receipt),
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
    tiles: list[Tile] = [
        ("wall time", measured.wall_s, format_seconds),
        ("GPU utilisation", fmean(utilization) if utilization else None, percent),
        ("SM activity", fmean(sm_activity) if sm_activity else None, percent),
        *_serving_tiles(receipt),
        ("images/s", measured.images_per_s, lambda value: figure(round(value))),
        (accuracy.name.replace("_", " ") if accuracy else "", accuracy.last if accuracy else None, figure),
        ("energy", measured.energy_j, energy_short),
    ]
    return [Row(label, words(value)) for label, value, words in tiles if value is not None]
