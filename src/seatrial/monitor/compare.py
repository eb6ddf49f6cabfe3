"""Runs side by side: what differs in what ran, what was measured, and every plot that two of them have."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from seatrial.errors import UsageError, fallback
from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.model import Receipt
from seatrial.receipt.outcome import NOT_FINISHED
from seatrial.receipt.render.pages import render_page
from seatrial.receipt.render.svg import COLOURS
from seatrial.receipt.section import STEPS_PLOT, Line, Plot
from seatrial.receipt.sections.measured import GpuUse, Metric, direction
from seatrial.receipt.sections.steps import StepAnatomy
from seatrial.receipt.sections.what_ran import device_in_words
from seatrial.receipt.values import count, energy_short, percent, rate

#: Most runs of a comparison: one for each colour.
MOST_RUNS = COLOURS
#: Kinds of dashes of look.css: several lines of one run in one plot.
_DASHES = 4
#: Noise: a relative difference of two measurements, or half a second of the shorter run; none of reported values.
_NOISE, _NOISE_S = 0.01, 0.5

Verdict = Literal["better", "worse"]
_VERDICTS: dict[bool, Verdict] = {True: "better", False: "worse"}
#: Names of a comparison's rows of other facts than arguments.
_FACTS = {"backend", "commit", "driver", "framework", "gpu", "gpus", "image", "outcome", "python", "target", "work"}
#: Arguments with such a word in their name change how much work a run has.
_OF_WORK = re.compile("epoch|step|iter|batch|size|sample|layer|depth|width|hidden|dim|len|model|arch|data|limit|debug")
#: ``--lr 0.1``, ``-e 3``, ``--amp``, ``lr=0.1``.
_ARGUMENT = re.compile(r"(?s)(?:--?([A-Za-z][\w.-]*)|([A-Za-z][\w.]*)(?==))(?:=(.*))?")
#: Separator of a target and its arguments; a Compose service's command has none: ``python train.py --lr 0.1``.
_BEFORE_ARGUMENTS = re.compile(" (?:-- |(?=--))")


@dataclass(frozen=True)
class Cell:
    """One run's side of a line: in words; None if the run has none.

    ``change``: against the first run. ``verdict``: of the change, if the number has a good direction.
    """

    text: str | None
    change: str | None = None
    verdict: Verdict | None = None
    best: bool = False


@dataclass(frozen=True)
class ComparedRow:
    """One line: a cell of each run."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Overlay:
    """A plot with the lines of several runs; ``runs`` and ``dashes`` of each line: its run, and its kind of dashes."""

    plot: Plot
    runs: tuple[int, ...]
    dashes: tuple[int, ...]

    @property
    def styles(self) -> tuple[str, ...]:
        """Return the classes of each line: a run has one colour in every plot."""
        pairs = zip(self.runs, self.dashes, strict=True)
        return tuple(f"line{run % COLOURS}" + (f" dash{dash}" if dash else "") for run, dash in pairs)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side: ``facts`` that differ in words, ``numbers`` compared with the first run's.

    ``names``: the name of each run, or its ID; of several runs of one name, both.
    """

    runs: tuple[Receipt, ...]
    facts: tuple[ComparedRow, ...]
    numbers: tuple[ComparedRow, ...]
    overlays: tuple[Overlay, ...]

    names: tuple[str, ...]


def compare(*receipts: Receipt) -> Comparison:
    """Compare receipts, final or provisional; a run that is named twice counts once. Raises UsageError: too many."""
    by_id = {receipt.header.run_id: receipt for receipt in reversed(receipts)}
    runs = tuple(by_id[run_id] for run_id in dict.fromkeys(receipt.header.run_id for receipt in receipts))
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many to distinguish: at most {MOST_RUNS}", run="seatrial runs ls")
    named = Counter(receipt.header.name for receipt in runs)
    names = []
    for header in (receipt.header for receipt in runs):
        both = f"{header.name} ({header.run_id})" if named[header.name] > 1 else header.name
        names.append(both if header.name and both else header.run_id)
    return Comparison(runs, _facts(runs), _numbers(runs), tuple(_overlays(runs, names)), tuple(names))


def _facts(runs: Sequence[Receipt]) -> tuple[ComparedRow, ...]:
    """Return the facts that differ, arguments among them, and always target, outcome and bound."""
    ranked = _unranked(runs)
    arguments = {receipt.header.run_id: _arguments(receipt) for receipt in runs}
    names = dict.fromkeys(name for given in arguments.values() for name in given)
    labels = [(f"--{name}" if name.lower() in _FACTS else name, name) for name in names]
    fields: list[tuple[str, Callable[[Receipt], str | None], bool]] = [
        ("target", lambda r: r.header.target, True),
        ("outcome", lambda r: r.outcome.brief, True),
        ("ranked", lambda r: ranked[r.header.run_id] or "yes", False),
        *((label, lambda r, name=name: arguments[r.header.run_id].get(name), False) for label, name in labels),
        ("work", _work, False),
        ("bound by", lambda r: r.diagnosis.cause if r.diagnosis else None, True),
        ("commit", lambda r: r.header.git_commit, False),
        ("backend", lambda r: r.header.backend, False),
        ("GPUs", lambda r: ", ".join(gpu.name for gpu in r.header.gpus) or device_in_words(r.header), False),
        ("driver", lambda r: r.header.driver, False),
        ("framework", lambda r: r.header.framework, False),
        ("Python", lambda r: r.header.python, False),
        ("image", lambda r: r.header.image.tag if r.header.image else None, False),
    ]
    rows = []
    for label, read, always in fields:
        texts = [read(receipt) for receipt in runs]
        if any(texts) and (always or len(set(texts)) > 1):
            rows.append(ComparedRow(label, tuple(Cell(text) for text in texts)))
    return tuple(rows)


def _numbers(runs: Sequence[Receipt]) -> tuple[ComparedRow, ...]:
    """Return the numbers, without repetitions: a best value that is the last, a script's summary at its end."""
    walls = [run.measurements.wall_s or math.inf for run in runs]
    noise = [_NOISE + _NOISE_S / min(walls[0], wall) for wall in walls]  # for the shorter run
    rows, seen, ranked = [], set(), [not why for why in _unranked(runs).values()]
    for reading in readings(runs):
        values = tuple(reading.read(receipt) for receipt in runs)
        if all(value is None for value in values) or (stem(reading.label), values) in seen:
            continue
        seen.add((stem(reading.label), values))
        rows.append(ComparedRow(reading.label, tuple(_cells(reading, values, ranked, noise))))
    return tuple(rows)


def _arguments(receipt: Receipt) -> dict[str, str]:
    """Return the target's arguments by name; one without a value is ``yes``."""
    typed = "".join(_BEFORE_ARGUMENTS.split(receipt.header.target, 1)[1:])
    words = fallback(typed.split(), on=ValueError)(shlex.split)(typed)  # a long command was cut within a quotation
    named = {}
    for word, after in pairwise((*words, "-")):
        if one := _ARGUMENT.fullmatch(word):
            lone = word.endswith("=") or re.match(r"-(?![\d.])|[\w.]+=", after)
            named[one[1] or one[2]] = one[3] or ("yes" if lone else after)
    return named


def _work(receipt: Receipt) -> str | None:
    """Return ``3 epochs``, or the number of steps; None if neither is known."""
    steps = receipt.anatomy[0].steps if receipt.anatomy else None
    return receipt.measurements.planned_work or (None if steps is None else count(steps, "step"))


def _unranked(runs: Sequence[Receipt]) -> dict[str, str]:
    """Return why each run is not ranked: it did not finish with the work of the first that did; "" if it is."""
    finished = [run for run in runs if run.outcome.id not in NOT_FINISHED]
    why = {run.header.run_id: f"no: {run.outcome.badge}" for run in runs}
    return why | {run.header.run_id: "no: other work" * (not _equal_work(finished[0], run)) for run in finished}


def _equal_work(one: Receipt, other: Receipt) -> bool:
    """Return whether two runs did as much; of two scripts, only if it is known of both."""
    works = {_work(one), _work(other)}
    scripts = {_BEFORE_ARGUMENTS.split(run.header.target, 1)[0] for run in (one, other)}
    a, b = ({name: value for name, value in _arguments(run).items() if _OF_WORK.search(name)} for run in (one, other))
    known = None not in works
    given = (a.keys() & b.keys()) if known else (a.keys() | b.keys())  # a default may be typed
    return all(a.get(n) == b.get(n) for n in given) and len(works - {None}) <= 1 and (len(scripts) == 1 or known)


def _cells(
    reading: ComparedNumber, values: Sequence[float | None], ranked: Sequence[bool], noise: Sequence[float]
) -> list[Cell]:
    known = {value for value, counts in zip(values, ranked, strict=True) if counts and value is not None}
    known = {value for value in known if math.isfinite(value)}
    apart = len(known) > 1 and max(known) - min(known) > reading.measured * max(noise) * min(map(abs, known))
    best = (max if reading.direction > 0 else min)(known) if reading.direction and apart else None
    cells = []
    for place, value in enumerate(values):
        if value is None:
            cells.append(Cell(None))
            continue
        change, verdict = None, None
        if place and (first := values[0]) is not None:
            change = _change(first, value, reading.words)
            if (
                reading.measured
                and change != "same"
                and abs(value - first) <= noise[place] * min(abs(first), abs(value))
            ):
                change = "within noise"
            elif reading.direction and ranked[0] and ranked[place] and abs(value - first) > 0:
                verdict = _VERDICTS[(value > first) == (reading.direction > 0)]
        words = reading.words(value) if math.isfinite(value) else str(value)
        cells.append(Cell(words, change, verdict, ranked[place] and value == best))
    return cells


def _change(first: float, value: float, words: Callable[[float], str]) -> str | None:
    """Return ``same``, ``+12.0 %``, from a doubling on ``×2.4``, from a halving ``÷2.4``, of shares ``+3 points``."""
    share = words(0.0).endswith("%")
    if first == value or (share and words(first) == words(value)):
        return "same"
    if share and math.isfinite(value - first):
        return f"{value - first:+.2g} points"
    ratio = value / first if first else 0.0
    if not 0 < ratio < math.inf:
        return None
    large = f"{'×' if ratio > 1 else '÷'}{float(f'{max(ratio, 1 / ratio):.2g}'):g}"
    return large if ratio >= 2 or ratio <= 0.5 else f"{100 * (ratio - 1):+.1f} %"


def _overlays(runs: Sequence[Receipt], names: Sequence[str]) -> list[Overlay]:
    """Lay plots of one ID and axis over one another; in older receipts, the n-th of an ID goes with the n-th."""
    found: dict[tuple[str, str, int], list[tuple[int, Plot]]] = {}
    for run, receipt in enumerate(runs):
        seen: Counter[tuple[str, str]] = Counter()
        for plot in receipt.plots:
            if plot.id != STEPS_PLOT and any(line.points for line in plot.lines):
                found.setdefault((plot.id, plot.x, seen[plot.id, plot.x]), []).append((run, plot))
            seen[plot.id, plot.x] += 1
    return [_overlay(plots, names) for plots in found.values() if len(plots) > 1 or len(runs) == 1]


def _overlay(plots: Sequence[tuple[int, Plot]], names: Sequence[str]) -> Overlay:
    kinds = list(dict.fromkeys(line.name for _, plot in plots for line in plot.lines))
    drawn = [(run, line) for run, plot in plots for line in plot.lines if line.points]
    lines = []
    for run, line in drawn:
        name = names[run] if len(kinds) == 1 else f"{names[run]} {line.name}"
        lines.append(Line(name=name, points=line.points))
    dashes = tuple(kinds.index(line.name) % _DASHES for _, line in drawn)
    return Overlay(plots[0][1].changed(lines=tuple(lines)), tuple(run for run, _ in drawn), dashes)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for ``--json`` and the dashboard's page."""
    return {
        "runs": [
            {"id": receipt.header.run_id, "name": receipt.header.name, "target": receipt.header.target, "label": name}
            for receipt, name in zip(comparison.runs, comparison.names, strict=True)
        ],
        "facts": [asdict(row) for row in comparison.facts],
        "numbers": [asdict(row) for row in comparison.numbers],
        "plots": [
            {**each.plot.model_dump(mode="json"), "runs": each.runs, "dashes": each.dashes}
            for each in comparison.overlays
        ],
    }


def to_html(comparison: Comparison) -> str:
    """Return the page as one file that opens offline."""
    plots = [each.plot for each in comparison.overlays]
    styles = dict(enumerate(each.styles for each in comparison.overlays))
    return render_page("seatrial.monitor", "compare.html", **vars(comparison), plots=plots, styles=styles)


# ------------------------------------------------------------------------------- the numbers that runs are compared by

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
            read = partial(_metric, metric.name, metric.unit, value)
            yield ComparedNumber(f"{metric.name}, {which}", read, metric.figure, better, measured=False)
    yield from _MEASURED
    for part in dict.fromkeys(part.words for receipt in runs for one in receipt.anatomy[:1] for part in one.parts):
        yield ComparedNumber(f"time: {part}", partial(_share, part), percent)


def stem(label: str) -> str:
    """Return a number's name without its phase and remark: ``accuracy`` of ``test_accuracy, best``."""
    return _PHASE.sub("", label.partition(",")[0])


def _metric(name: str, unit: str, value: Callable[[Metric], float | None], receipt: Receipt) -> float | None:
    metrics = receipt.measurements.metrics
    return next((value(metric) for metric in metrics if (metric.name, metric.unit) == (name, unit)), None)


def _gpu_mean(read: Callable[[GpuUse], float | None]) -> Read:
    def mean(receipt: Receipt) -> float | None:
        values = [value for use in receipt.measurements.gpus if (value := read(use)) is not None]
        return fmean(values) if values else None

    return mean


def _steps(read: Callable[[StepAnatomy], float | None]) -> Read:
    return lambda receipt: read(receipt.anatomy[0]) if receipt.anatomy else None


def _share(part: str, receipt: Receipt) -> float | None:
    parts = receipt.anatomy[0].parts if receipt.anatomy else ()
    return next((100 * each.share for each in parts if each.words == part), None)


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
    ComparedNumber("GPU memory, peak", _gpu_mean(lambda use: use.memory_peak_bytes), format_bytes),
    ComparedNumber("power, mean", _gpu_mean(lambda use: use.power_mean_w), lambda value: f"{value:.0f} W"),
    ComparedNumber("MFU", lambda r: 100 * r.diagnosis.mfu if r.diagnosis and r.diagnosis.mfu else None, percent, 1),
    ComparedNumber("energy", lambda r: r.measurements.energy_j, energy_short, -1),
    ComparedNumber("CPU, mean", lambda r: r.measurements.cpu_cores_mean, lambda value: f"{value:.2f} cores"),
    ComparedNumber("memory, peak", lambda r: r.measurements.memory_peak_bytes, format_bytes),
)
