"""Curves: the plots of a receipt, thinned, with the numbers of the training window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from seatrial.common.signals import REGIONS
from seatrial.job.units import format_seconds
from seatrial.receipt.reported import MAX_POINTS, PHASES, Point, ReportedSteps, significant, thin
from seatrial.receipt.section import STEPS_PLOT, Block, Charts, LegendValue, Line, Plot, Section
from seatrial.receipt.sections.steps import stacked_plot
from seatrial.receipt.values import gpu_names, grouped

if TYPE_CHECKING:
    from seatrial.receipt.evidence import RunEvidence, SampleFacts
    from seatrial.receipt.model import Receipt
    from seatrial.receipt.sections.measured import GpuUse, Measurements

#: GPUs with lines of their own; more cannot be distinguished in one plot.
MAX_GPUS = 8
#: Plots of the target's own numbers, most important names first.
MAX_STEP_PLOTS = 8
_FIRST_NAMES = ("loss", "step_loss", "accuracy", "images_per_s")
#: Parts of a step that never take more are not drawn.
_SMALLEST_PART_PCT = 1.0
#: A /dev/shm that holds less than this is a line along the axis. Semaphores alone take kilobytes.
_SMALLEST_SHM_GB = 0.001

#: Key of a sample → name of its line, and the measurement of it over the window.
_BUSY: tuple[tuple[str, str, Callable[[GpuUse], float | None]], ...] = (
    ("utilization_pct", "utilisation", lambda use: use.utilization_mean_pct),
    ("sm_activity_pct", "SM activity", lambda use: use.sm_activity_mean_pct),
    ("tensor_activity_pct", "tensor activity", lambda use: use.tensor_activity_mean_pct),
    ("dram_activity_pct", "memory bandwidth", lambda use: use.dram_activity_mean_pct),
)

#: Plots of amounts, of which the peak counts.
_PEAKS = ("gpu-memory", "memory")

_NO_SAMPLE = "No sample fell into it: the numbers above those charts are of the whole run"


class Curves(Section):
    title = "Plots"
    embedded = False

    def read(self, run: RunEvidence) -> dict[str, Any]:
        """Return the target's numbers over steps, the GPUs and the container over time."""
        printed = run.output.printed.complement(run.evidence.steps, own=bool(run.evidence.written))
        series = {name: each.points for name, each in printed.items()}
        own = [*_step_plots(run.evidence.steps), *_step_plots(ReportedSteps(series=series))]
        plots = [*own, *_anatomy_plots(run), *_gpu_plots(run), *_host_plots(run)]
        return {"plots": tuple(plot for plot in plots if any(len(line.points) > 1 for line in plot.lines))}

    def blocks(self, receipt: Receipt) -> list[Block]:
        stacked = stacked_plot(receipt)
        if not (plots := [plot for plot in receipt.plots if plot is not stacked]):
            return []
        values = {place: found for place, plot in enumerate(plots) if (found := values_in_window(receipt, plot))}
        note = window_note(receipt) if any(plot.x == "seconds" for plot in plots) else ""
        return [Charts(plots, values, receipt.measurements.window, note)]


def _step_plots(steps: ReportedSteps) -> list[Plot]:
    """Return a plot for each metric, with train and test together."""
    phases = ((next((p for p in PHASES if p and name.startswith(p) and name != p), ""), name) for name in steps.series)
    groups = grouped((name.removeprefix(phase), name) for phase, name in phases)
    order = sorted(groups, key=lambda g: _FIRST_NAMES.index(g) if g in _FIRST_NAMES else len(_FIRST_NAMES))
    lines = {each: tuple(_line(name, steps.series[name]) for name in groups[each]) for each in order[:MAX_STEP_PLOTS]}
    return [Plot(id=f"steps-{group}", title=group, unit="", x=steps.axis, lines=of) for group, of in lines.items()]


def _anatomy_plots(run: RunEvidence) -> list[Plot]:
    """Return the parts of rank 0's steps as shares of the time since the point before, at common points to stack."""
    over_time = run.evidence.anatomy[0].over_time if run.evidence.anatomy else ()
    each = -(-len(over_time) // (MAX_POINTS // 2)) or 1
    stretches: list[tuple[float, dict[str, float]]] = []
    for first in range(0, len(over_time), each):
        together = over_time[first : first + each]
        spent = {region: sum(part.get(region, 0.0) for _, part in together) for region in REGIONS}
        if sum(spent.values()):
            stretches.append((together[-1][0], spent))
    if not stretches:
        return []
    begin_s = max(0.0, stretches[0][0] - sum(stretches[0][1].values()))
    ends = [(begin_s, stretches[0][1]), *stretches]
    points = {
        region: [(significant(at_s), significant(100 * spent[region] / sum(spent.values()))) for at_s, spent in ends]
        for region in REGIONS
    }
    drawn = [region for region in REGIONS if any(y >= _SMALLEST_PART_PCT for _, y in points[region])]
    lines = [Line(name=run.evidence.anatomy[0].words(region), points=tuple(points[region])) for region in drawn]
    return [_over_time(STEPS_PLOT, "Where the time went", "%", lines)]


def _gpu_plots(run: RunEvidence) -> list[Plot]:
    """Return plots of GPUs numbered in CUDA order, by which two runs are compared whichever GPUs they had."""
    samples = run.evidence.samples
    gpus, names = run.expected[:MAX_GPUS], gpu_names(run.expected)
    plots = []
    for number, gpu in enumerate(gpus):
        lines = [_line(label, _points(samples, key, gpu=gpu.uuid)) for key, label, _ in _BUSY]
        title = "GPU busy" if len(gpus) == 1 else f"{names[gpu.uuid]} busy"
        plots.append(_over_time(f"gpu-{number}-busy", title, "%", lines))
    for key, id, title, unit, scale in (
        ("memory_used_bytes", "gpu-memory", "GPU memory, sampled", "GB", 1e9),
        ("power_w", "gpu-power", "GPU power", "W", 1.0),
    ):
        lines = [_line(names[gpu.uuid], _points(samples, key, scale, gpu=gpu.uuid)) for gpu in gpus]
        plots.append(_over_time(id, title, unit, lines))
    return plots


def _host_plots(run: RunEvidence) -> list[Plot]:
    samples = run.evidence.samples
    memory = [_line("memory", _points(samples, "memory_bytes", 1e9))]
    shm = _points(samples, "shm_used_bytes", 1e9)
    if any(y >= _SMALLEST_SHM_GB for _, y in shm):
        memory.append(_line("/dev/shm", shm))
    cores = [_line("cores in use", _points(samples, "cpu_cores"))]
    return [_over_time("cpu", "CPU", "cores", cores), _over_time("memory", "Host memory, sampled", "GB", memory)]


def _over_time(id: str, title: str, unit: str, lines: Iterable[Line]) -> Plot:
    return Plot(id=id, title=title, unit=unit, x="seconds", lines=tuple(line for line in lines if line.points))


def _points(samples: Sequence[SampleFacts], key: str, scale: float = 1.0, *, gpu: str | None = None) -> list[Point]:
    """Return a value over time, of the container or of a GPU."""
    values = ((each.at_s, (each.host if gpu is None else each.gpus.get(gpu, {})).get(key)) for each in samples)
    return [(at_s, y / scale) for at_s, y in values if y is not None]


def _line(name: str, points: Sequence[Point]) -> Line:
    return Line(name=name, points=tuple((significant(x), significant(y)) for x, y in thin(points)))


def window_note(receipt: Receipt) -> str:
    """Describe the shaded window and the numbers of it; "" if there is none."""
    measured = receipt.measurements
    if measured.window is None or measured.window_s is None:
        return ""
    name = "the time over which it served" if receipt.serving is not None else "the training window"
    begin, end = map(_at, measured.window)
    of_it = "The numbers above those charts and under Measured come from it" if measured.samples else _NO_SAMPLE
    begins = f", from {measured.window_begins}" if measured.window_begins else ""
    return f"Shaded: {name}, {begin} to {end} ({format_seconds(measured.window_s)}{begins}). {of_it}."


def _at(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 60 else format_seconds(seconds)


def values_in_window(receipt: Receipt, plot: Plot) -> list[LegendValue] | None:
    """Return (``mean`` or ``peak``, value) of each line; None for a chart that is not over time."""
    if plot.x != "seconds" or plot.id == STEPS_PLOT:
        return None
    word, best = ("peak", max) if plot.id in _PEAKS else ("mean", fmean)
    window = receipt.measurements.window
    found: list[LegendValue] = []
    for line, measured in zip(plot.lines, _measured(receipt.measurements, plot), strict=True):
        inside = [y for x, y in line.points if window and window[0] <= x <= window[1]]
        if measured is not None or inside:
            found.append((word, best(inside) if measured is None else measured))
        else:
            found.append((f"{word} of the run", best(y for _, y in line.points)))
    return found


def _measured(measured: Measurements, plot: Plot) -> list[float | None]:
    """Return the measurements over all samples of the window, of which a chart may have only some."""
    gpus, number = measured.gpus if measured.samples else (), plot.id.removeprefix("gpu-").removesuffix("-busy")
    if plot.id == "cpu" and measured.samples:
        return [measured.cpu_cores_mean for _ in plot.lines]
    if number.isdecimal() and int(number) < len(gpus):
        reads = {label: read for _, label, read in _BUSY}
        return [reads[line.name](gpus[int(number)]) if line.name in reads else None for line in plot.lines]
    if plot.id == "gpu-power" and len(plot.lines) == len(gpus):
        return [use.power_mean_w for use in gpus]
    if plot.id == "gpu-memory" and len(plot.lines) == len(gpus):
        return [None if use.memory_peak_bytes is None else use.memory_peak_bytes / 1e9 for use in gpus]
    return [None for _ in plot.lines]
