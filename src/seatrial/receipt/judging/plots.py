"""Plots of a receipt: which lines go together, thinned to what a receipt keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from seatrial.diagnosis.anatomy import REGIONS
from seatrial.receipt.evidence.facts import Sample
from seatrial.receipt.evidence.series import MAX_POINTS, Point, significant, thin
from seatrial.receipt.evidence.steps import PHASES, Steps
from seatrial.receipt.formatting import gpu_names
from seatrial.receipt.judging.judging_input import Case
from seatrial.receipt.model import STEPS_PLOT, Line, Plot

#: GPUs that get lines of their own; more cannot be told apart in one plot.
MAX_GPUS = 8

#: Plots of the target's own numbers, most telling names first.
MAX_STEP_PLOTS = 8
_FIRST_NAMES = ("loss", "step_loss", "accuracy", "images_per_s")

#: Parts of a step that never take more are not drawn.
_SMALLEST_PART_PCT = 1.0

#: A /dev/shm that holds less than this is a line along the axis. Semaphores alone take kilobytes.
_SMALLEST_SHM_GB = 0.001

_BUSY = (
    ("utilization_pct", "utilisation"),
    ("sm_activity_pct", "SM activity"),
    ("tensor_activity_pct", "tensor activity"),
    ("dram_activity_pct", "memory bandwidth"),
)


def make_plots(case: Case) -> tuple[Plot, ...]:
    """Plots that have something to show: the target's numbers over steps, the GPUs and the container over time."""
    samples = case.evidence.samples
    plots = [
        *_step_plots(case.evidence.steps),
        *_anatomy_plots(case),
        *_gpu_plots(case, samples),
        *_host_plots(samples),
    ]
    return tuple(plot for plot in plots if any(len(line.points) > 1 for line in plot.lines))


def _step_plots(steps: Steps) -> list[Plot]:
    """Train and test of one metric share a plot."""
    groups: dict[str, list[str]] = {}
    for name in steps.series:
        phase = next((p for p in PHASES if p and name.startswith(p) and len(name) > len(p)), "")
        groups.setdefault(name[len(phase) :], []).append(name)
    order = sorted(groups, key=lambda g: _FIRST_NAMES.index(g) if g in _FIRST_NAMES else len(_FIRST_NAMES))
    x: Literal["step", "epoch", "line"] = (
        "step" if steps.axis == "step" else "epoch" if steps.axis == "epoch" else "line"
    )
    return [
        Plot(
            id=f"steps-{group}",
            title=group,
            unit="",
            x=x,
            lines=tuple(_line(name, steps.series[name]) for name in groups[group]),
        )
        for group in order[:MAX_STEP_PLOTS]
    ]


def _anatomy_plots(case: Case) -> list[Plot]:
    """Where the time of the first rank's steps went: shares of the time since the point before.

    All lines have the same points, and no more than are kept, so that they can be drawn one on the other.
    """
    told = case.evidence.anatomy[0].over_time if case.evidence.anatomy else ()
    each = -(-len(told) // (MAX_POINTS // 2)) or 1
    stretches: list[tuple[float, dict[str, float]]] = []
    for first in range(0, len(told), each):
        together = told[first : first + each]
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
    lines = [
        Line(name=case.evidence.anatomy[0].words(region), points=tuple(points[region]))
        for region in REGIONS
        if any(y >= _SMALLEST_PART_PCT for _, y in points[region])
    ]
    return [_over_time(STEPS_PLOT, "Where the time went", "%", lines)]


def _gpu_plots(case: Case, samples: Sequence[Sample]) -> list[Plot]:
    """Plots of one GPU are numbered in CUDA order, by which two runs are compared whichever GPUs they had."""
    gpus, names = case.expected[:MAX_GPUS], gpu_names(case.expected)
    plots = []
    for number, gpu in enumerate(gpus):
        lines = [_line(label, _gpu_points(samples, gpu.uuid, key)) for key, label in _BUSY]
        title = "GPU busy" if len(gpus) == 1 else f"{names[gpu.uuid]} busy"
        plots.append(_over_time(f"gpu-{number}-busy", title, "%", lines))
    for key, id, title, unit, scale in (
        ("memory_used_bytes", "gpu-memory", "GPU memory, sampled", "GB", 1e9),
        ("power_w", "gpu-power", "GPU power", "W", 1.0),
    ):
        lines = [_line(names[gpu.uuid], _gpu_points(samples, gpu.uuid, key, scale)) for gpu in gpus]
        plots.append(_over_time(id, title, unit, lines))
    return plots


def _host_plots(samples: Sequence[Sample]) -> list[Plot]:
    memory = [
        _line("memory", _points(samples, lambda s: s.host.get("memory_bytes"), 1e9)),
    ]
    shm = _points(samples, lambda s: s.host.get("shm_used_bytes"), 1e9)
    if any(y >= _SMALLEST_SHM_GB for _, y in shm):
        memory.append(_line("/dev/shm", shm))
    cores = [_line("cores in use", _points(samples, lambda s: s.host.get("cpu_cores")))]
    return [_over_time("cpu", "CPU", "cores", cores), _over_time("memory", "Host memory, sampled", "GB", memory)]


def _over_time(id: str, title: str, unit: str, lines: Iterable[Line]) -> Plot:
    return Plot(id=id, title=title, unit=unit, x="seconds", lines=tuple(line for line in lines if line.points))


def _gpu_points(samples: Sequence[Sample], uuid: str, key: str, scale: float = 1.0) -> list[Point]:
    return _points(samples, lambda sample: sample.gpus.get(uuid, {}).get(key), scale)


def _points(samples: Sequence[Sample], value: Callable[[Sample], float | None], scale: float = 1.0) -> list[Point]:
    return [(sample.at_s, y / scale) for sample in samples if (y := value(sample)) is not None]


def _line(name: str, points: Sequence[Point]) -> Line:
    return Line(name=name, points=tuple((significant(x), significant(y)) for x, y in thin(points)))
