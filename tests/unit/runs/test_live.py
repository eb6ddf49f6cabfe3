"""A run while it goes on: the tail of its events, its alerts, and garbage in between."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from seatrial.runs import live as progress
from seatrial.runs.live import Progress, look
from seatrial.runs.run import Run
from seatrial.runs.streams import OfRank, OutputReader
from seatrial.runs.watch import Alerts
from tables import cases


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "record").mkdir()
    return Run(tmp_path / "record", tmp_path / "place")


def write(run, *lines):
    with run.events_path.open("ab") as file:
        for line in lines:
            file.write(line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode() + b"\n")


def a_sample(t, **gpu):
    values = {"uuid": "GPU-0", "utilization_pct": 30.0, "sm_activity_pct": 4.0, "throttle_reasons": [], **gpu}
    return {"t": t, "type": "sample", "source": "agent", "gpus": [values], "cpu_cores": 1.0, "main_cpu_cores": 1.0}


def a_finding(message, source="agent"):
    return {"t": 1.0, "type": "finding", "source": source, "id": "hang", "severity": "warning", "message": message,
            "evidence": ["seen"]}  # fmt: skip


def test_last_numbers_and_what_bounds_the_last_minute(run):
    write(run, *(a_sample(t, sm_activity_pct=99.0, utilization_pct=100.0) for t in range(60)))
    write(run, b"garbage\n", *(a_sample(t) for t in range(1000, 1005)), {"step": 7, "loss": 0.5, "t": 1004.0}, b'{"st')
    now = look(run)
    assert dict(now.numbers) == {"step": 7.0, "loss": 0.5}
    assert now.diagnosis.cause == "launch-bound"


def test_a_clock_that_was_set_back_hides_nothing(run):
    write(run, *(a_sample(t, sm_activity_pct=99.0, utilization_pct=100.0) for t in range(5000, 5060)))
    write(run, *(a_sample(t) for t in range(1000, 1005)), {"loss": 0.5, "t": 1004.0})
    assert look(run).diagnosis.cause == "launch-bound"


def test_alerts_come_once_and_cannot_steer_the_terminal(run):
    alerts = Alerts(run)
    assert list(alerts.new()) == []
    write(run, a_sample(1), a_finding("It \x1b[2Jhangs"), a_finding("no", source="host"), b'{"type":"finding","half')
    assert list(alerts.new()) == ["warning: It hangs (seen)"] and list(alerts.new()) == []
    assert list(Alerts(run, from_now=True).new()) == []


def test_printed_numbers_are_shown_until_the_script_reports_its_own(run):
    write(run, a_sample(1))
    (run.folder / "stdout.log").write_text("epoch 2/4 loss 0.5 acc 91.5 %\nat 12.5 dB\n")
    now = look(run, "", {"psnr": r"at (\S+) dB"})
    assert now.latest == {"psnr": 12.5, "loss": 0.5, "acc": 91.5}
    assert (now.percent, now.progress) == ({"acc"}, "epoch 2/4")
    write(run, {"t": 2.0, "loss": 0.25})
    latest = look(run, "", {"psnr": r"at (\S+) dB"}).latest
    assert latest == {"psnr": 12.5, "loss": 0.25, "t": 2.0}


# -------------------------------------------------------------------- speed


class Clock:
    """A clock that is set by hand."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def reported(steps: Any, seconds: float, **keys: Any) -> dict[str, Any]:
    anatomy = {"pid": 5, "steps": steps, "seconds": seconds} | keys
    return {"t": 50.0 + seconds, "type": "step", "source": "target", "anatomy": anatomy}


def test_the_position_is_the_one_that_was_printed_last(run: Run, clock: Clock) -> None:
    run.folder.mkdir(exist_ok=True)
    now, out, err = Progress(run), run.folder / "stdout.log", run.folder / "stderr.log"
    out.write_text("epoch 1/4 loss 0.5\n")
    assert now.words() == "epoch 1/4"
    out.write_text("epoch 1/4 loss 0.5\nepoch 2/4 loss 0.4\n")
    assert now.words() == "epoch 2/4"
    err.write_text("epoch 3/4\n")
    os.utime(out, (1, 1))
    assert now.words() == "epoch 3/4"


def test_rates_and_the_rest_of_a_pass(run: Run, clock: Clock) -> None:
    now = Progress(run)
    assert now.words() == ""
    for second in range(3):
        write(
            run,
            reported(1100 + 80 * second, 10.0 + second, examples=640 * second, **{"pass": [80 * (second + 1), 480]}),
        )
        clock.now_s += 1
        words = now.words()
    assert words == "50 % of this pass, 3 s left; 1,260 steps, 80 steps/s, 640 examples/s"


def test_a_run_that_makes_no_steps_any_more_has_no_rate(run: Run, clock: Clock) -> None:
    now = Progress(run)
    write(run, reported(10, 1.0), reported(20, 2.0))
    clock.now_s += 1
    assert now.words() == "20 steps, 10 steps/s"
    write(run, {"t": 58.0, "type": "sample", "source": "agent"})
    clock.now_s += 1
    assert now.words() == ""


@cases("printed", "words")
def test_a_printed_position_has_the_time_left_of_the_whole_training(run: Run, printed: str, words: str) -> None:
    (run.folder / "handle.json").touch()
    (run.folder / "stdout.log").write_text(printed)
    now_s = time.time()
    os.utime(run.folder / "handle.json", (now_s - 60, now_s - 60))
    os.utime(run.folder / "stdout.log", (now_s, now_s))
    a_second_later = words.replace("3 min", "2 min 59 s").replace("17 s", "16 s")
    assert Progress(run).words() in (words, a_second_later)


def test_a_measured_pass_is_a_part_of_the_printed_epochs(run: Run) -> None:
    write(run, reported(10, 1.0, **{"pass": [10, 40]}), reported(20, 2.0, **{"pass": [20, 40]}))
    (run.folder / "stdout.log").write_text("Epoch 2/2\n")
    assert Progress(run).words() == "epoch 2/2; 20 steps, 10 steps/s"
    (run.folder / "handle.json").touch()
    now_s = time.time()
    os.utime(run.folder / "handle.json", (now_s - 30, now_s - 30))
    assert Progress(run).words() in ("epoch 2/2, about 10 s left; 20 steps, 10 steps/s",
                                     "epoch 2/2, about 9 s left; 20 steps, 10 steps/s")  # fmt: skip


def test_another_ranks_lines_and_garbage_count_for_nothing(run: Run, clock: Clock) -> None:
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


# ------------------------------------------------------------------- output


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "stdout.log").write_bytes(b"one\nthree\n")
    (tmp_path / "stderr.log").write_bytes(b"two\n")
    (tmp_path / "output.idx").write_bytes(b"1.0 1 4\n1.1 2 4\n1.2 1 6\n")
    return tmp_path


def test_the_streams_are_interleaved_as_printed(folder):
    assert list(OutputReader(folder).new()) == [("stdout", b"one\n"), ("stderr", b"two\n"), ("stdout", b"three\n")]


def test_a_line_of_the_index_still_being_written_waits(folder):
    (folder / "output.idx").write_bytes(b"1.0 1 4\n1.1 2")
    reader = OutputReader(folder)
    assert list(reader.new()) == [("stdout", b"one\n")]
    (folder / "output.idx").write_bytes(b"1.0 1 4\n1.1 2 4\n")
    assert list(reader.new()) == [("stderr", b"two\n")]


def test_what_a_killed_agent_left_out_of_the_index_is_not_lost(folder):
    (folder / "output.idx").write_bytes(b"1.0 1 4\n")
    reader = OutputReader(folder)
    list(reader.new())
    assert sorted(reader.rest()) == [("stderr", b"two\n"), ("stdout", b"three\n")]


def test_the_tail_begins_at_a_chunk(folder):
    reader = OutputReader(folder)
    reader.skip_to_last(2)
    assert list(reader.new()) == [("stderr", b"two\n"), ("stdout", b"three\n")]


def test_the_lines_of_one_rank_are_picked_out_whole():
    got = []
    write = OfRank(1, lambda stream, data: got.append((stream, data)))
    for stream, data in [
        ("stdout", b"[rank0]: a\n[rank1]: b\n[ra"),
        ("stderr", b"[rank1]: warning\n[rank10]: other\n"),
        ("stdout", b"nk1]: c\nno mark\n[rank1]: unfinished"),
    ]:
        write(stream, data)
    assert got == [("stdout", b"[rank1]: b\n"), ("stderr", b"[rank1]: warning\n"), ("stdout", b"[rank1]: c\n")]
