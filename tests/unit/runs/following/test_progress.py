"""The speed of a run in one line, from its growing evidence."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from seatrial.runs.following import live as progress
from seatrial.runs.following.live import Progress
from seatrial.runs.run import Run
from tables import cases


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def write(run: Run, *lines: Any) -> None:
    run.folder.mkdir(exist_ok=True)
    with run.events_path.open("a") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def reported(steps: Any, seconds: float, **keys: Any) -> dict[str, Any]:
    anatomy = {"pid": 5, "steps": steps, "seconds": seconds} | keys
    return {"t": 50.0 + seconds, "type": "step", "source": "target", "anatomy": anatomy}


def test_rates_and_the_rest_of_a_pass(tmp_path: Path, clock: Clock) -> None:
    run = Run(tmp_path / "record", tmp_path / "place")
    now = Progress(run)
    assert now.words() == ""
    for second in range(3):
        write(
            run,
            reported(1100 + 80 * second, 10.0 + second, examples=640 * second, **{"pass": [80 * (second + 1), 480]}),
        )
        clock.now_s += 1
        words = now.words()
    assert words == "1,260 steps, 80 steps/s, 640 examples/s; 50 % of this pass, 3 s left"


def test_a_run_that_makes_no_steps_any_more_has_no_rate(tmp_path: Path, clock: Clock) -> None:
    run = Run(tmp_path / "record", tmp_path / "place")
    now = Progress(run)
    write(run, reported(10, 1.0), reported(20, 2.0))
    clock.now_s += 1
    assert now.words() == "20 steps, 10 steps/s"
    write(run, {"t": 58.0, "type": "sample", "source": "agent"})
    clock.now_s += 1
    assert now.words() == ""


@cases("printed", "words")
def test_a_printed_position_has_the_time_left_of_the_whole_training(tmp_path: Path, printed: str, words: str) -> None:
    run = Run(tmp_path / "record", tmp_path / "place")
    run.folder.mkdir()
    (run.folder / "handle.json").touch()
    (run.folder / "stdout.log").write_text(printed)
    now_s = time.time()
    os.utime(run.folder / "handle.json", (now_s - 60, now_s - 60))
    os.utime(run.folder / "stdout.log", (now_s, now_s))
    a_second_later = words.replace("3 min", "2 min 59 s").replace("17 s", "16 s")
    assert Progress(run).words() in (words, a_second_later)


def test_a_measured_pass_is_a_part_of_the_printed_epochs(tmp_path: Path) -> None:
    run = Run(tmp_path / "record", tmp_path / "place")
    write(run, reported(10, 1.0, **{"pass": [10, 40]}), reported(20, 2.0, **{"pass": [20, 40]}))
    (run.folder / "stdout.log").write_text("Epoch 2/2\n")
    assert Progress(run).words() == "20 steps, 10 steps/s; epoch 2/2"
    (run.folder / "handle.json").touch()
    now_s = time.time()
    os.utime(run.folder / "handle.json", (now_s - 30, now_s - 30))
    assert Progress(run).words() in ("20 steps, 10 steps/s; epoch 2/2, about 10 s left",
                                     "20 steps, 10 steps/s; epoch 2/2, about 9 s left")  # fmt: skip


def test_another_ranks_lines_and_garbage_count_for_nothing(tmp_path: Path, clock: Clock) -> None:
    run = Run(tmp_path / "record", tmp_path / "place")
    now = Progress(run)
    write(
        run,
        reported(10, 1.0),
        {**reported(10_000, 2.0), "rank": 1},
        reported("many", 2.0),
        reported([], float("inf")),
        {"anatomy": 3},
    )
    clock.now_s += 1
    assert now.words() == ""
    write(run, reported("\x1b[2J", 3.0), reported(30, 2.0))
    clock.now_s += 1
    assert now.words() == "rank 0: 30 steps, 20 steps/s"
