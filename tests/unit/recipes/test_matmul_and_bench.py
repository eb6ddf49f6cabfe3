"""matmul measures what it says; bench plans, picks and shows its ways."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from seatrial.recipes import bench, matmul
from seatrial.train.errors import InputError, TrainError

pytestmark = pytest.mark.torch


def test_matmul_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert matmul.main(["--sizes", "64", "128", "--kinds", "cpu-fp32", "--json", str(tmp_path / "m.json")]) == 0
    (first, second) = json.loads((tmp_path / "m.json").read_text())["table"]
    assert second["tflops"] == pytest.approx(2 * 128**3 / (second["milliseconds"] / 1e3) / 1e12)
    assert first["size"] == 64
    assert "CPU: " in capsys.readouterr().out


def test_matmul_without_anything_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="every kind was skipped"):
        matmul.main(["--sizes", "64", "--kinds", "bf16"])


def test_plan_of_the_ways() -> None:
    arguments, rest = bench.parse(["train", "mnist", "--compare", "dp,ddp", "--gpus", "2", "--", "--data", "x"])
    assert rest == ["--data", "x"]
    assert [(way.name, way.options, way.ranks, way.gpus) for way in bench.plan(arguments)] == [
        ("dp", ["--data-parallel"], 1, 2),
        ("ddp", [], 2, 2),
    ]
    scaling = bench.plan(bench.parse(["scaling", "mnist", "--gpus", "1,2"])[0])
    assert [(way.name, way.ranks) for way in scaling] == [("1 rank", 1), ("2 ranks", 2)]
    with pytest.raises(InputError, match="knows no warp"):
        bench.plan(bench.parse(["train", "mnist", "--compare", "eager,warp"])[0])


def variant(name: str, *rates: float, ranks: int = 1) -> bench.Variant:
    runs = [{"images_per_s": rate, "loop_s": 1.0, "process_s": 2.0, "accuracy": 0.99} for rate in rates]
    return bench.Variant(name, [], ranks=ranks, gpus=ranks, runs=runs)


def test_table_has_medians_ratios_and_efficiency() -> None:
    lines = bench.table([variant("1 GPU", 90, 100, 5000), variant("4 GPU", 380, ranks=4)]).splitlines()
    assert lines[1].split() == ["1", "GPU", "1.000", "2.00", "100", "99.00%", "1.00", "100.0%"]
    assert lines[2].split() == ["4", "GPU", "1.000", "2.00", "380", "99.00%", "3.80", "95.0%"]


def test_table_has_the_memory_where_there_is_any_and_no_share_of_one() -> None:
    small = variant("64", 50)
    small.runs[0][bench.MEMORY] = 1.5e9
    lines = bench.table([small, variant("128", 75)]).splitlines()
    assert lines[1].split() == ["64", "1.000", "2.00", "50", "99.00%", "1,500", "MB", "1.00"]
    assert lines[2].split() == ["128", "1.000", "2.00", "75", "99.00%", "1.50"]


def test_the_smallest_batch_that_is_fast_enough_is_picked() -> None:
    failed = bench.Variant("4096", [], failure="failed with exit code 1")
    assert bench.picked([variant("64", 50), variant("128", 97), variant("256", 100), failed]).name == "128"


def test_every_way_failing_is_one_sentence(tmp_path: Path) -> None:
    argv = ["train", "mnist", "--compare", "cpu", "--repeats", "1", "--", "--data", str(tmp_path / "no")]
    with pytest.raises(TrainError, match=r"no variant of mnist ran: the data folder .* does not exist"):
        bench.main(argv)


def test_data_parallel_on_a_cpu_is_not_measured_under_its_name(tmp_path: Path) -> None:
    argv = ["train", "mnist", "--compare", "dp", "--gpus", "2", "--repeats", "1", "--", "--data", str(tmp_path)]
    with pytest.raises(TrainError, match="DataParallel uses several GPUs from one process; this machine has 0"):
        bench.main(argv)


@pytest.mark.slow
def test_bench_runs_a_recipe_in_processes_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    argv = ["batch", "digits", "--batches", "64", "256", "--repeats", "1", "--json", str(tmp_path / "b.json")]
    assert bench.main([*argv, "--", "--epochs", "1"]) == 0
    ways = json.loads((tmp_path / "b.json").read_text())["ways"]
    assert [way["name"] for way in ways] == ["64", "256"] and all(way["runs"][0]["images_per_s"] > 0 for way in ways)
