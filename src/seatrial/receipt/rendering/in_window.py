"""The numbers beside charts over time: of the training window, as those under Measured are."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from seatrial.job.units import format_seconds
from seatrial.receipt.look.svg import Told
from seatrial.receipt.model import STEPS_PLOT, GpuUse, Line, Plot, Receipt

#: Line of a plot of one GPU → what was measured of it over the window.
_BUSY: dict[str, Callable[[GpuUse], float | None]] = {
    "utilisation": lambda use: use.utilization_mean_pct,
    "SM activity": lambda use: use.sm_activity_mean_pct,
    "tensor activity": lambda use: use.tensor_activity_mean_pct,
    "memory bandwidth": lambda use: use.dram_activity_mean_pct,
}

#: Plots of amounts: what counts is the most there was.
_PEAKS = ("gpu-memory", "memory")


def window_words(receipt: Receipt) -> str:
    """What is shaded, from when to when, and which numbers are of it; "" where there is no window."""
    measured = receipt.measurements
    if measured.window_start_s is None or measured.window_s is None:
        return ""
    name = "the time over which it served" if receipt.serving is not None else "the training window"
    begin, end = (_at(seconds) for seconds in (measured.window_start_s, measured.window_start_s + measured.window_s))
    of_it = "The numbers above those charts and under Measured are of it" if measured.samples else _NO_SAMPLE
    begins = f", from {measured.window_begins}" if measured.window_begins else ""
    return f"Shaded: {name}, {begin} to {end} ({format_seconds(measured.window_s)}{begins}). {of_it}."


_NO_SAMPLE = "No sample fell into it: the numbers above those charts are of the whole run"


def values_in_window(receipt: Receipt, plot: Plot) -> list[Told] | None:
    """(``mean`` or ``peak``, value) of each line; None of a chart that is not over time."""
    if plot.x != "seconds" or plot.id == STEPS_PLOT:
        return None
    return [_told(receipt, plot, place, line) for place, line in enumerate(plot.lines)]


def _told(receipt: Receipt, plot: Plot, place: int, line: Line) -> Told:
    measured = _measured(receipt, plot, place, line)
    word = "peak" if plot.id in _PEAKS else "mean"
    if measured is not None:
        return word, measured
    inside = _inside(receipt, line)
    if not inside:
        return f"{word} of the run", (max if word == "peak" else fmean)(y for _, y in line.points)
    return word, (max if word == "peak" else fmean)(inside)


def _measured(receipt: Receipt, plot: Plot, place: int, line: Line) -> float | None:
    """Of all samples in the window, of which a chart may have only some."""
    measured = receipt.measurements
    if not measured.samples:
        return None
    if plot.id == "cpu":
        return measured.cpu_cores_mean
    kind, _, rest = plot.id.partition("-")
    if kind == "gpu" and rest.endswith("-busy") and line.name in _BUSY:
        number = rest.removesuffix("-busy")
        inside = number.isdecimal() and int(number) < len(measured.gpus)
        return _BUSY[line.name](measured.gpus[int(number)]) if inside else None
    if plot.id == "gpu-power" and len(plot.lines) == len(measured.gpus):
        return measured.gpus[place].power_mean_w
    if plot.id == "gpu-memory" and len(plot.lines) == len(measured.gpus):
        peak = measured.gpus[place].memory_peak_bytes
        return None if peak is None else peak / 1e9
    return None


def _inside(receipt: Receipt, line: Line) -> list[float]:
    start_s, seconds = receipt.measurements.window_start_s, receipt.measurements.window_s
    if start_s is None or seconds is None:
        return []
    return [y for x, y in line.points if start_s <= x <= start_s + seconds]


def _at(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 60 else format_seconds(seconds)
