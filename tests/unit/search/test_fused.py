"""Fused trials: what is refused, what trials.json is believed, and one run that tells several trials."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.search import fused
from seatrial.search.engines import ENGINES, PRUNERS
from seatrial.search.objective import parse_objective
from seatrial.search.search import Search
from seatrial.search.space import parse_space
from seatrial.search.study import Definition, Study


def search_of(
    folder: Path, *settings: str, target: Target | None = None, metric: str | None = "accuracy:max"
) -> Search:
    objective = parse_objective(metric) if metric else None
    study = Study.create(folder / "study.sqlite", Definition("s", "t", settings, "grid", metric))
    job = Job(project=folder, target=target or Target(kind="recipe", value="mnist", args=("--epochs", "2")))
    said: list[str] = []
    return Search(study, parse_space(settings), objective, ENGINES["grid"](0), None, job, dict(os.environ), said.append)


@pytest.mark.parametrize(
    ("settings", "target", "metric", "sentence"),
    [
        (["batch=32,64"], None, "accuracy:max", "not in batch"),
        (["epochs=1,2"], None, "accuracy:max", "not in epochs"),
        (["lr=1,2"], Target(kind="recipe", value="spam"), "accuracy:max", "Only the recipes mnist, digits, mnist-deep"),
        (["lr=1,2"], Target(kind="script", value="train.py"), None, "Only the recipes"),
        (["lr=1,2"], None, "f1:max", "report loss, test_loss, accuracy, not f1"),
    ],
)
def test_what_does_not_train_as_one_model(tmp_path, settings, target, metric, sentence) -> None:
    with pytest.raises(UsageError, match=sentence) as told:
        search = search_of(tmp_path, *settings, target=target, metric=metric)
        fused.check(search.job, search.space, search.objective)
    assert told.value.run


def test_the_job_has_all_settings_and_says_so(tmp_path: Path) -> None:
    search = search_of(tmp_path, "lr=0.1,1e-3", "seed=0,7", "weight-decay=0.5")
    fused.check(search.job, search.space, search.objective)
    trials = fused._asked(search)
    job = fused.job_of(search, trials)
    told = json.loads(job.target.args[job.target.args.index("--fused-settings") + 1])
    assert told[1] == {"learning_rate": 0.1, "seed": 7, "weight_decay": 0.5} and len(told) == 4
    assert job.target.typed == "sweep mnist --fused -- --epochs 2 # 4 trials as one model: trials 0 to 3 of study s"
    assert "--fused-unless" not in job.target.args
    with pytest.raises(UsageError, match="lr=fast is no number"):
        other = search_of(tmp_path / "other", "lr=fast") if (tmp_path / "other").mkdir() is None else None
        fused.job_of(other, fused._asked(other))


def test_pruners_are_left_out_and_said(tmp_path: Path) -> None:
    search = search_of(tmp_path, "lr=1,2")
    search.pruner = PRUNERS["median"]()
    said: list[str] = []
    search.say = said.append
    fused.leave_pruner_out(search)
    assert search.pruner is None and "none is pruned" in said[0]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"trials": 3}', '{"trials": [{"trial": 1}]}', '{"trials": [[]]}', "[" * 100_000, "\udcff"],
)
def test_a_file_that_says_something_else_tells_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "trials.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert fused.records(SimpleNamespace(outputs=tmp_path)) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text('{"trials": [{"trial": 0}]}')
    (tmp_path / "trials.json").symlink_to("real.json")
    assert fused.records(SimpleNamespace(outputs=tmp_path)) == []


def test_numbers_end_where_something_is_none() -> None:
    assert fused._numbers({"losses": [1, 0.5, None, 2]}, "losses") == [1.0, 0.5]
    assert fused._numbers({"losses": [True]}, "losses") == []
    assert fused._numbers({"losses": "123"}, "losses") == []
    assert fused._numbers({"losses": [float("inf"), 1]}, "losses") == []


def test_reports_come_once(tmp_path: Path) -> None:
    search = search_of(tmp_path, "lr=1,2")
    trials = fused._asked(search)
    told = [0, 0]
    fused._report(search, trials, [{"accuracies": [0.5]}, {"accuracies": []}], told)
    fused._report(search, trials, [{"accuracies": [0.5, 0.75]}, {"accuracies": [0.25]}], told)
    assert [[report.value for report in trial.reports] for trial in search.study.trials()] == [[0.5, 0.75], [0.25]]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_one_run_tells_all_trials_and_its_best_is_the_saved_model(tmp_path: Path) -> None:
    import struct
    import subprocess
    import sys

    pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    numbers = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for part, count in (("train", 120), ("t10k", 60)):
        labels = numbers.integers(0, 3, count).astype(np.uint8)
        images = numbers.integers(0, 160, (count, 12, 12)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 4 * label : 4 * label + 3] += 60
        for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (tmp_path / "data" / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())
    command = [
        sys.executable,
        "-m",
        "seatrial",
        "sweep",
        "mnist",
        "--fused",
        "--on",
        "local",
        "--gpus",
        "none",
        "--json",
    ]
    command += ["--data", "data", "--models", "models", "--set", "lr=0.0001,0.003,1e30", "--set", "seed=0,1"]
    command += ["--metric", "accuracy:max", "--", "--epochs", "2", "--batch", "30"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)
    assert len({trial["run_id"] for trial in trials}) == 1
    assert [trial["state"] for trial in trials] == ["done"] * 4 + ["failed"] * 2
    assert "diverged" in trials[5]["outcome"]
    assert all(
        len(trial["reports"]) == 2 and trial["metrics"]["test_accuracy"] == trial["value"] for trial in trials[:4]
    )
    best = max(range(4), key=lambda number: trials[number]["value"])
    receipt = (tmp_path / ".seatrial" / "runs" / trials[0]["run_id"] / "receipt.md").read_text()
    assert "6 trials as one model" in receipt and "end\\_trials | 6" in receipt
    command = [sys.executable, "-m", "seatrial.recipes.mnist", "--data", "data", "--models", "lone", "--epochs", "2"]
    settings = trials[best]["settings"]
    command += ["--batch", "30", "--learning-rate", settings["lr"], "--seed", settings["seed"]]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    same = [(tmp_path / folder / "mnist.safetensors").read_bytes() for folder in ("models", "lone")]
    assert same[0] == same[1]
