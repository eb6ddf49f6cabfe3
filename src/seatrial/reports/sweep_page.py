"""A sweep as one HTML file: a table whose cells are bars, so that numbers and their comparison are one thing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.receipt.rendering.pages import render_page
from seatrial.runs.sweep import Result
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.names import Names

#: Metrics shown at most: a script may report dozens.
MAX_METRICS = 8

Column = tuple[str, Callable[[Result], "float | None"], bool]


def columns(results: Sequence[Result]) -> list[Column]:
    """(title, number of a result, lower is better) of every number that some run has."""
    fixed: list[Column] = [
        ("seconds", lambda result: result.seconds, True),
        ("images/s", lambda result: result.images_per_s, False),
        ("GPU %", lambda result: result.utilization_pct, False),
        ("energy J", lambda result: result.energy_j, True),
    ]
    names = list(dict.fromkeys(name for result in results for name in result.metrics))
    shown = [name for name in names if name not in ("images_per_s", "epoch")][:MAX_METRICS]
    metrics: list[Column] = [(name, _metric(name), "loss" in name or "error" in name) for name in shown]
    return [column for column in (*fixed, *metrics) if any(column[1](result) is not None for result in results)]


def _metric(name: str) -> Callable[[Result], float | None]:
    return lambda result: result.metrics.get(name)


def best(results: Sequence[Result], column: Column) -> Result | None:
    """The run that is best in a column, of those that finished."""
    _, number, lower = column
    known = [result for result in results if result.exit_code == 0 and number(result) is not None]
    return (min if lower else max)(known, key=lambda result: number(result) or 0.0) if len(known) > 1 else None


def write(folder: Path, title: str, results: Sequence[Result], names: Names) -> Path:
    """index.html and results.json without ``names``; the page's path. Raises DiskError."""
    make_folder(folder)
    title = names.text(title)
    results = [Result(**names.scrub(result.as_dict(), keep=("run_id",))) for result in results]
    write_atomically(folder / "results.json", json.dumps([result.as_dict() for result in results], indent=1).encode())
    write_atomically(folder / "index.html", _page(title, results).encode())
    return folder / "index.html"


@dataclass(frozen=True)
class _Cell:
    """A number, and how long its bar is, in percent of the longest of the column."""

    text: str
    percent: str
    best: bool


def _page(title: str, results: Sequence[Result]) -> str:
    shown = columns(results)
    settings = list(results[0].settings) if results else []
    rows = [
        {
            "settings": list(result.settings.values()),
            "cells": [_cell(result, results, column) for column in shown],
            "outcome": result.outcome,
            "failed": bool(result.exit_code),
        }
        for result in results
    ]
    return render_page(
        "sweep.html", title=title, head=[*settings, *(column[0] for column in shown), "outcome"], rows=rows
    )


def _cell(result: Result, results: Sequence[Result], column: Column) -> _Cell:
    value = column[1](result)
    if value is None:
        return _Cell("", "0", best=False)
    top = max((abs(column[1](one) or 0.0) for one in results), default=0.0) or 1.0
    return _Cell(f"{value:.4g}", f"{100 * abs(value) / top:.0f}", best=best(results, column) is result)
