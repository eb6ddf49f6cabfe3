"""The receipt as one HTML file: no script, nothing loaded, light or dark as the reader's system is.

Everything a run printed or named is escaped; docs/decisions.md, 0004 says why the plots are drawn here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from statistics import fmean

from seatrial.diagnosis.anatomy import REGIONS
from seatrial.job.units import format_seconds
from seatrial.receipt.formatting import energy_short, figure, percent, rate
from seatrial.receipt.look.pages import render_page
from seatrial.receipt.model import STEPS_PLOT, Criterion, Receipt
from seatrial.receipt.rendering.anatomy import anatomy_rows, bar_parts
from seatrial.receipt.rendering.bars import draw_batches
from seatrial.receipt.rendering.in_window import values_in_window, window_words
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
from seatrial.receipt.telling import telling

#: Whose templates these are.
ROOM = "seatrial.receipt.rendering"

#: Criteria in the order in which one looks for them; those that were not judged are folded away.
_ORDER = ("fail", "warning", "pass")


def render(receipt: Receipt, *, embedded: bool = False) -> str:
    """The whole page.

    Args:
        embedded: without heading, plots and the end of the logs, for a page that has them.
    """
    start_s, seconds = receipt.measurements.window_start_s, receipt.measurements.window_s
    window = None if start_s is None or seconds is None else (start_s, start_s + seconds)
    stacked = [plot for plot in receipt.plots if receipt.anatomy and plot.id == STEPS_PLOT and can_be_stacked(plot)]
    bar = bar_parts(receipt)
    fine = [part for part in bar if part.words in (REGIONS["copy"], REGIONS["sync"])]
    plots = [plot for plot in receipt.plots if plot not in stacked]
    return render_page(
        ROOM,
        "receipt.html",
        receipt=receipt,
        embedded=embedded,
        headline=headline(receipt),
        judged_at=datetime.fromtimestamp(receipt.header.judged_at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        wanted=wanted,
        unmet=[criterion for criterion in receipt.criteria if criterion.weight == "fail"],
        criteria=_sorted(receipt.criteria),
        words=_words(receipt),
        tiles=tiles(receipt),
        window=window,
        shade=window_words(receipt) if any(plot.x == "seconds" for plot in plots) else "",
        plots=plots,
        values={place: told for place, plot in enumerate(plots) if (told := values_in_window(receipt, plot))},
        stack=draw_stack(stacked[0]) if stacked else None,
        coarse=bool(stacked) and any(part.words not in {line.name for line in stacked[0].lines} for part in fine),
        open_criteria=open_criteria(receipt),
        open_count=sum(criterion.verdict == "not judged" for criterion in receipt.criteria),
        serving=list(serving_rows(receipt)),
        histogram=draw_batches(receipt.serving.batches) if receipt.serving and receipt.serving.batches else "",
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


def _sorted(criteria: Sequence[Criterion]) -> list[Criterion]:
    """What fails first; within one weight in their own order."""
    return [criterion for weight in _ORDER for criterion in criteria if criterion.weight == weight]


def _words(receipt: Receipt) -> str:
    """Of its outcome; what is not met stands beside the badge."""
    return receipt.outcome.words.partition("; not met: ")[0]


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


def _four_digits(value: float) -> str:
    """A tile is no place for more."""
    return figure(float(f"{value:.4g}"))


def tiles(receipt: Receipt) -> list[Row]:
    """The few numbers one looks for first; of several GPUs their mean."""
    measured = receipt.measurements
    utilization = [use.utilization_mean_pct for use in measured.gpus if use.utilization_mean_pct is not None]
    sm_activity = [use.sm_activity_mean_pct for use in measured.gpus if use.sm_activity_mean_pct is not None]
    last = {metric.name: metric.last for metric in measured.metrics}
    loss, accuracy = telling(last)
    steps = receipt.anatomy[0] if receipt.anatomy else None
    of_rank = ", rank 0" if len(receipt.anatomy) > 1 else ""
    found: list[Tile] = [
        (accuracy.replace("_", " "), last.get(accuracy), _four_digits),
        (loss.replace("_", " "), last.get(loss), _four_digits),
        ("wall time", measured.wall_s, format_seconds),
        ("GPU utilisation", fmean(utilization) if utilization else None, percent),
        ("SM activity", fmean(sm_activity) if sm_activity else None, percent),
        *_serving_tiles(receipt),
        (f"steps/s{of_rank}", steps.steps_per_s if steps else None, rate),
        (f"examples/s{of_rank}", steps.examples_per_s if steps else None, rate),
        ("examples/s", measured.images_per_s, lambda value: figure(round(value))),
        ("energy", measured.energy_j, energy_short),
    ]
    return [Row(label, words(value)) for label, value, words in found if value is not None]
