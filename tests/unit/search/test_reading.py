"""The objective's values as a script prints or reports them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seatrial.runs.run import Run
from seatrial.search.metrics import Reading
from seatrial.search.request import Objective
from tables import cases


def _reading(folder: Path, pattern: str | None = None) -> tuple[Reading, Path]:
    path = folder / "events.jsonl"
    run = cast(Run, cast(Any, SimpleNamespace(events_path=path)))
    return Reading(run, Objective("loss", "min", pattern), None), path


def _values(reading: Reading) -> list[float]:
    return [value for _, value in reading.new()]


@pytest.mark.parametrize(
    ("printed", "pattern", "value"),
    [
        (b"loss: 1.5e-05", r"loss: ([\d.]+)", 1.5e-05),
        (b"loss: 0.25.", r"loss: ([\d.]+)", 0.25),
        (b"loss: 91.2%", r"loss: (\S+)", 91.2),
        (b"(loss=-3, n=2)", r"loss=(\S+)", -3.0),
        (b"loss: 2 epochs", r"loss: (\d+)", 2.0),
        (b"\r 1/4 loss=0.5\r 2/4 loss=0.4", r"loss=([\d.]+)", 0.4),
    ],
)
def test_a_number_in_many_forms(tmp_path: Path, printed: bytes, pattern: str, value: float) -> None:
    reading, _ = _reading(tmp_path, pattern)
    reading.output("stdout", printed + b"\n")
    assert _values(reading)[-1] == value == reading.last_printed and not reading.diverged


def test_a_printed_nan_at_the_end_diverged(tmp_path: Path) -> None:
    reading, _ = _reading(tmp_path, r"loss: (\S+)")
    reading.output("stdout", b"loss: 0.5\nloss: nan\n")
    assert _values(reading) == [0.5] and reading.diverged
    reading.output("stdout", b"loss: 0.4\n")
    assert _values(reading) == [0.4] and not reading.diverged


@cases("phases", "series")
def test_the_series_is_what_came_while_it_trained(tmp_path: Path, phases: list[str], series: str | None) -> None:
    reading, path = _reading(tmp_path)
    path.write_text("".join(f'{{"type":"step","phase":"{phase}","loss":0.5}}\n' for phase in phases))
    reading.new()
    assert reading.series == series


@cases("reported", "diverged")
def test_a_reported_one_that_is_no_finite_number(tmp_path: Path, reported: list[str], diverged: bool) -> None:
    reading, path = _reading(tmp_path)
    path.write_text("".join(f'{{"type":"step","epoch":1,"loss":{one}}}\n' for one in reported))
    reading.new()
    assert reading.diverged is diverged
