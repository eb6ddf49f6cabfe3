"""Two runs side by side: what differs in what ran, what was measured, and every plot that both have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from seatrial.job.units import format_bytes, format_seconds
from seatrial.receipt.formatting import energy_short, figure, percent
from seatrial.receipt.model import GpuUse, Line, Plot, Receipt
from seatrial.receipt.rendering.pages import render_page
from seatrial.receipt.rendering.rows import device
from seatrial.system.files import write_atomically

Words = Callable[[float], str]


@dataclass(frozen=True)
class Row:
    """One line: both sides in words (None: not there), and B against A in words where both are numbers."""

    label: str
    a: str | None
    b: str | None
    change: str | None = None


@dataclass(frozen=True)
class Comparison:
    """``facts`` differ in words; ``numbers`` are measured; ``plots`` have the lines of both runs, named A and B."""

    a: Receipt
    b: Receipt
    facts: tuple[Row, ...]
    numbers: tuple[Row, ...]
    plots: tuple[Plot, ...]


def compare(a: Receipt, b: Receipt) -> Comparison:
    """Compare two receipts, final or provisional."""
    return Comparison(a, b, _facts(a, b), _numbers(a, b), _plots(a, b))


def name(receipt: Receipt) -> str:
    """What to call a run: its name, else its ID."""
    return receipt.header.name or receipt.header.run_id


def _facts(a: Receipt, b: Receipt) -> tuple[Row, ...]:
    """What ran and how it ended; only what differs, but always target, outcome and what bounded it."""
    fields: list[tuple[str, Callable[[Receipt], str | None], bool]] = [
        ("target", lambda r: r.header.target, True),
        ("outcome", lambda r: r.outcome.sentence, True),
        ("bound by", lambda r: r.diagnosis.cause if r.diagnosis else None, True),
        ("commit", lambda r: r.header.git_commit, False),
        ("backend", lambda r: r.header.backend, False),
        ("GPUs", lambda r: ", ".join(gpu.name for gpu in r.header.gpus) or device(r), False),
        ("driver", lambda r: r.header.driver, False),
        ("framework", lambda r: r.header.framework, False),
        ("Python", lambda r: r.header.python, False),
        ("image", lambda r: r.header.image.tag if r.header.image else None, False),
    ]
    rows = [(label, read(a), read(b), always) for label, read, always in fields]
    return tuple(Row(label, x, y) for label, x, y, always in rows if (x or y) and (always or x != y))


def _numbers(a: Receipt, b: Receipt) -> tuple[Row, ...]:
    readings: list[tuple[str, Callable[[Receipt], float | None], Words]] = [
        ("wall time", lambda r: r.measurements.wall_s, format_seconds),
        ("start-up", lambda r: r.measurements.startup_s, format_seconds),
        ("images/s", lambda r: r.measurements.images_per_s, figure),
        ("utilisation", _gpu_mean(lambda use: use.utilization_mean_pct), percent),
        ("SM activity", _gpu_mean(lambda use: use.sm_activity_mean_pct), percent),
        ("tensor activity", _gpu_mean(lambda use: use.tensor_activity_mean_pct), percent),
        ("DRAM activity", _gpu_mean(lambda use: use.dram_activity_mean_pct), percent),
        ("GPU memory, peak", _gpu_mean(lambda use: use.memory_peak_bytes), _bytes),
        ("power, mean", _gpu_mean(lambda use: use.power_mean_w), lambda value: f"{value:.0f} W"),
        ("MFU", lambda r: 100 * r.diagnosis.mfu if r.diagnosis and r.diagnosis.mfu else None, percent),
        ("energy", lambda r: r.measurements.energy_j, energy_short),
        ("CPU, mean", lambda r: r.measurements.cpu_cores_mean, lambda value: f"{value:.2f} cores"),
        ("memory, peak", lambda r: r.measurements.memory_peak_bytes, _bytes),
    ]
    rows = [_row(label, read(a), read(b), words) for label, read, words in readings]
    metrics = [{metric.name: metric for metric in receipt.measurements.metrics} for receipt in (a, b)]
    for key in dict.fromkeys([*metrics[0], *metrics[1]]):
        last = [side[key].last if key in side else None for side in metrics]
        rows.append(_row(f"{key}, last", last[0], last[1], figure))
        best = [side[key].best if key in side else None for side in metrics]
        if best != last:
            rows.append(_row(f"{key}, best", best[0], best[1], figure))
    return tuple(row for row in rows if row.a is not None or row.b is not None)


def _gpu_mean(read: Callable[[GpuUse], float | None]) -> Callable[[Receipt], float | None]:
    def mean(receipt: Receipt) -> float | None:
        values = [value for use in receipt.measurements.gpus if (value := read(use)) is not None]
        return fmean(values) if values else None

    return mean


def _row(label: str, a: float | None, b: float | None, words: Words) -> Row:
    change = None
    if a is not None and b is not None:
        ratio = b / a if a else None
        change = "same" if a == b else None if ratio is None or ratio <= 0 else _ratio(ratio)
    return Row(label, None if a is None else words(a), None if b is None else words(b), change)


def _ratio(ratio: float) -> str:
    """``+12 %``; from a doubling or halving on, ``×2.4``."""
    if ratio >= 2 or ratio <= 0.5:
        return f"×{ratio:.3g}"
    return f"{100 * (ratio - 1):+.1f} %"


def _plots(a: Receipt, b: Receipt) -> tuple[Plot, ...]:
    """Plots of the same ID and axis, laid over one another; the n-th with the n-th, where an older receipt has several
    of one ID."""
    second = _numbered(b.plots)
    merged = []
    for key, plot in _numbered(a.plots).items():
        other = second.get(key)
        if other is not None:
            lines = [*_named("A", plot.lines), *_named("B", other.lines)]
            merged.append(plot.model_copy(update={"lines": tuple(lines)}))
    return tuple(merged)


def _numbered(plots: Sequence[Plot]) -> dict[tuple[str, str, int], Plot]:
    seen: Counter[tuple[str, str]] = Counter()
    found: dict[tuple[str, str, int], Plot] = {}
    for plot in plots:
        found[plot.id, plot.x, seen[plot.id, plot.x]] = plot
        seen[plot.id, plot.x] += 1
    return found


def _named(side: str, lines: Sequence[Line]) -> list[Line]:
    return [line.model_copy(update={"name": f"{side} {line.name}"}) for line in lines if line.points]


def to_json(comparison: Comparison) -> dict[str, Any]:
    """What ``--json`` and the dashboard's page get."""
    return {
        **{side: _about(receipt) for side, receipt in (("a", comparison.a), ("b", comparison.b))},
        "rows": [asdict(row) for row in comparison.facts + comparison.numbers],
        "plots": [plot.model_dump(mode="json") for plot in comparison.plots],
    }


def _about(receipt: Receipt) -> dict[str, Any]:
    return {"id": receipt.header.run_id, "name": receipt.header.name, "target": receipt.header.target}


def write_page(path: Path, comparison: Comparison) -> None:
    """to_html into a file, whole or not at all. Raises DiskError."""
    write_atomically(path, to_html(comparison).encode())


def _bytes(value: float) -> str:
    return format_bytes(int(value))


def to_html(comparison: Comparison) -> str:
    """One file that opens offline, as a receipt's."""
    return render_page(
        "compare.html",
        a=name(comparison.a),
        b=name(comparison.b),
        rows=comparison.facts + comparison.numbers,
        plots=comparison.plots,
    )
