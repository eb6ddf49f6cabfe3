"""The mnist recipe on small data made here: it learns, resumes bit for bit, ends 143 on SIGTERM."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from seatrial import events  # noqa: E402
from seatrial.recipes import mnist  # noqa: E402
from seatrial.train.errors import InputError  # noqa: E402
from seatrial.train.saving.checkpoint import load, load_newest  # noqa: E402

pytestmark = pytest.mark.torch


def run(data: Path, models: Path, *more: str) -> int:
    return mnist.main(["--data", str(data), "--models", str(models), "--batch", "32", *more])


def test_learns_saves_and_reports(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEATRIAL_EVENTS", str(tmp_path / "events.jsonl"))
    assert run(data, tmp_path, "--epochs", "3") == 0
    lines, skipped = events.read(str(tmp_path / "events.jsonl"))
    assert skipped == 0
    tests = [line for line in lines if line["phase"] == "test"]
    assert [line["epoch"] for line in tests] == [1, 2, 3]
    assert tests[-1]["accuracy"] > 0.95
    assert "epoch 3: loss" in capsys.readouterr().out

    from safetensors.torch import load_file

    weights = torch.load(tmp_path / "mnist.pth", weights_only=True)
    same = load_file(tmp_path / "mnist.safetensors")
    assert weights.keys() == same.keys() and all(torch.equal(weights[name], same[name]) for name in same)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("schedule", ["constant", "triangle"])
def test_resume_is_bit_identical(data: Path, tmp_path: Path, schedule: str) -> None:
    shown = ["--epochs", "3", "--schedule", schedule]
    run(data, tmp_path / "whole", *shown)
    run(data, tmp_path / "parts", *shown)
    for path in (tmp_path / "parts" / "checkpoints").glob("*.pt"):  # as if it had ended after the second epoch
        if load(path)["epoch"] > 3:
            path.unlink()
    run(data, tmp_path / "parts", *shown, "--resume")
    whole, parts = (load_newest(tmp_path / name / "checkpoints", print) for name in ("whole", "parts"))
    for name, tensor in whole["model"].items():
        assert torch.equal(tensor, parts["model"][name]), name


def test_sigterm_saves_exits_143_and_goes_on_bit_identically(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "seatrial.recipes.mnist", "--data", str(data), "--batch", "32"]
    stopped = subprocess.Popen(
        [*command, "--models", str(tmp_path), "--epochs", "100000", "--schedule", "constant"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert stopped.stdout is not None
    for line in stopped.stdout:
        if line.startswith("epoch 2:"):
            break
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 143
    state = load_newest(tmp_path / "checkpoints", print)
    epochs = str(state["epoch"] + 1)
    shown = ["--schedule", "constant", "--epochs", epochs]  # another number of epochs would fall at another pace
    run(data, tmp_path, *shown, "--resume")
    run(data, tmp_path / "whole", *shown)
    resumed, whole = (load_newest(folder / "checkpoints", print) for folder in (tmp_path, tmp_path / "whole"))
    assert resumed["epoch"] == whole["epoch"]
    for name, tensor in whole["model"].items():
        assert torch.equal(tensor, resumed["model"][name]), name


@pytest.mark.parametrize(
    ("options", "sentence"), [(["--batch", "301"], "larger than the 300"), (["--resume", "/none"], "no checkpoint in")]
)
def test_what_cannot_be_intended(data: Path, tmp_path: Path, options: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run(data, tmp_path, *options)


@pytest.mark.parametrize("options", [["--epochs", "0"], ["--batch", "-1"], ["--learning-rate", "0"]])
def test_numbers_that_cannot_be(options: list[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        mnist.main(options)
    assert exit.value.code == 2


def test_missing_data_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "seatrial.recipes.mnist", "--data", str(tmp_path / "no")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the data folder") and "Traceback" not in done.stderr


def test_a_full_disk_keeps_the_old_model(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mnist.pth").write_text("old")
    argv = [
        sys.executable,
        "-m",
        "seatrial.recipes.mnist",
        "--data",
        str(data),
        "--models",
        str(tmp_path),
        "--epochs",
        "1",
    ]
    script = f"ulimit -f 100; exec {' '.join(argv)}"  # 100 KiB a file: the model has 160
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "error: cannot write" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "mnist.pth").read_text() == "old"
    assert not list(tmp_path.rglob("*.part"))


def real_mnist() -> Path | None:
    repository = Path(__file__).parents[3]
    places = [os.environ.get("SEATRIAL_DATA"), repository.parent / "shared" / "data"]
    return next((Path(place) / "mnist" for place in places if place and (Path(place) / "mnist").is_dir()), None)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_mnist_reaches_98_5_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = real_mnist()
    if folder is None:
        pytest.skip("the real MNIST is not here: neither ../shared/data/mnist nor $SEATRIAL_DATA/mnist")
    monkeypatch.setenv("SEATRIAL_EVENTS", str(tmp_path / "events.jsonl"))
    assert mnist.main(["--data", str(folder), "--models", str(tmp_path), "--epochs", "3"]) == 0
    lines, _ = events.read(str(tmp_path / "events.jsonl"))
    assert lines[-1]["accuracy"] >= 0.985
