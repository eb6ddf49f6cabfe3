"""The metrics and the progress that a script prints."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from seatrial.receipt.logs import read_output, read_printed
from seatrial.receipt.printed import Printed
from tables import cases


def _read(text: str, patterns: dict[str, str] | None = None) -> Printed:
    lines = Printed(patterns)
    for number, line in enumerate(text.encode().split(b"\n"), 1):
        lines.add(line, number)
    return lines


@cases("script", "lines", "values", "progress")
def test_a_scripts_lines_have_its_metrics_and_no_other(
    script: str, lines: str, values: dict[str, float | str], progress: float | None
) -> None:
    read = _read(lines)
    found = {
        name: series.ended_as or (f"{series.points[-1][1]:.10g} %" if series.unit else series.points[-1][1])
        for name, series in read.series.items()
    }
    assert found == values
    assert read.progress.share() == (None if progress is None else pytest.approx(progress))


@cases("line")
def test_a_number_that_is_not_surely_a_metric_is_left_out(line: str) -> None:
    assert not _read(line).series


def test_a_pattern_reads_its_own_name_and_wins() -> None:
    lines = _read("loss 0.5, at 12.5 dB and 1.5e-05.\n", {"psnr": r"at (\S+) dB", "loss": r"and ([\d.]+)"})
    assert {name: series.points[-1][1] for name, series in lines.series.items()} == {"psnr": 12.5, "loss": 1.5e-05}


@pytest.mark.parametrize("order", [("stdout", "stderr"), ("stderr", "stdout")])
def test_a_name_in_both_streams_is_that_of_standard_output(order: tuple[str, str]) -> None:
    lines = Printed()
    for stream in order:
        lines.add(b"loss 0.5" if stream == "stdout" else b"loss=0.9, acc=0.8", 1, stream)
    found = {name: (series.stream, series.points[-1][1]) for name, series in lines.series.items()}
    assert found == {"acc": ("stderr", 0.8), "loss": ("stdout", 0.5)}


def test_a_last_value_that_is_no_number_does_not_hide_the_last_number() -> None:
    series = _read("loss 0.5\nloss 0.25\nloss nan\n").series["loss"]
    assert (series.ended_as, series.line, series.count, series.points[-1][1]) == ("nan", 3, 2, 0.25)


def test_the_line_of_the_last_value_counts_from_the_first_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").write_text("start\nepoch 1/2 loss 0.5\n\nepoch 2/2 loss 0.25\nend\n")
    printed = read_output(tmp_path).printed
    series = printed.series["loss"]
    assert (series.line, series.count, series.points[0][1], series.points[-1][1]) == (4, 2, 0.5, 0.25)
    assert (str(printed.progress), printed.progress.share()) == ("epoch 2/2", 1.0)
    assert read_printed(tmp_path, {}).series["loss"].points[-1][1] == 0.25


def test_a_million_names_and_values_stay_few(tmp_path: Path) -> None:
    lines = Printed()
    for number in range(2500):
        lines.add(b"loss_%d: 0.5 loss: %d.5" % (number, number), number)
    assert len(lines.series) == 32
    assert lines.series["loss"].count == 2500 and len(lines.series["loss"].points) < 2000


def test_a_hostile_line_costs_milliseconds() -> None:
    random.seed(0)
    parts = ["loss", "acc", ":", "=", "|", "/", "(", ")", "[", "]", "{", "}", "'", '"', "0", "1", ".", ",", "-", "%",
             "e", " ", "\t", "train", "test", "of", ">", "@", "epoch "]  # fmt: skip
    lines = ["loss" + "".join(random.choice(parts) for _ in range(1500)) for _ in range(50)]
    lines += ["accuracy of " + "model " * 600, "| a" + " " * 3900 + "loss", "loss " + "9" * 3900 + ".5.5"]
    lines += ["{'loss':" * 500, "1 " * 1900 + "loss", "train epoch " * 330 + "loss 1", "loss " + " 5%|" * 900]
    for line in lines:
        began_s = time.process_time()
        _read(line)
        assert time.process_time() - began_s < 0.5, line[:60]
