"""Trials trained as one model are equal to their lone runs: on a CPU to the bit, grouped to 1e-4 of the loss."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from seatrial import events  # noqa: E402
from seatrial.recipes import mnist, mnist_deep  # noqa: E402
from seatrial.recipes.saved import read_saved  # noqa: E402
from seatrial.train.errors import InputError, TrainError  # noqa: E402
from seatrial.train.saving.checkpoint import load_newest  # noqa: E402

pytestmark = pytest.mark.torch
SETTINGS = [{"lr": 0.001}, {"learning_rate": 0.003, "seed": 5}, {"lr": 0.002, "weight_decay": 0.1, "seed": 5}]
FLAGS = {"lr": "--learning-rate", "learning_rate": "--learning-rate", "weight_decay": "--weight-decay"}


def train(recipe, data, models, *more):
    batch = "64" if recipe is mnist else "32"
    return recipe.main(["--data", str(data), "--models", str(models), "--batch", batch, "--epochs", "2", *more])


def fused(recipe, data, models, *more, settings=SETTINGS):
    """What trials.json says of them."""
    assert train(recipe, data, models, "--fused-settings", json.dumps(settings), *more) == 0
    return json.loads((models / "trials.json").read_text())


def lone(recipe, data, models, setting, monkeypatch):
    """Losses and test losses of each epoch of the lone run."""
    log = models / "events.jsonl"
    models.mkdir(parents=True)
    monkeypatch.setenv("SEATRIAL_EVENTS", str(log))
    words = [word for name, value in setting.items() for word in (FLAGS.get(name, f"--{name}"), str(value))]
    assert train(recipe, data, models, *words) == 0
    monkeypatch.delenv("SEATRIAL_EVENTS")
    lines, _ = events.read(str(log))
    losses = [line["loss"] for line in lines if line["phase"] == "train" and "images" in line]
    return losses, [line["test_loss"] for line in lines if line["phase"] == "test"]


@pytest.mark.parametrize(
    ("recipe", "name"), [(mnist, "mnist"), pytest.param(mnist_deep, "trained-model", marks=pytest.mark.slow)]
)
def test_equal_to_lone_runs(recipe, name, data, wide_data, tmp_path, monkeypatch):
    folder = data if recipe is mnist else wide_data
    looped = fused(recipe, folder, tmp_path / "looped", "--fused-models", "3")
    grouped = fused(recipe, folder, tmp_path / "grouped", "--fused-way", "grouped")
    assert (looped["way"], grouped["way"]) == ("looped", "grouped")
    for number, setting in enumerate(SETTINGS):
        losses, test_losses = lone(recipe, folder, tmp_path / str(number), setting, monkeypatch)
        own, other = looped["trials"][number], grouped["trials"][number]
        assert own["losses"] == losses and own["test_losses"] == test_losses
        weights, theirs = (load_file(place / f"{name}.safetensors") for place in
                           (tmp_path / "looped" / "trials" / f"00{number}", tmp_path / str(number)))  # fmt: skip
        assert all(torch.equal(weights[key], theirs[key]) for key in theirs)
        for mine, expected in zip(other["losses"] + other["test_losses"], losses + test_losses, strict=True):
            assert abs(mine - expected) <= 1e-4 * expected
    best = looped["trials"][looped["best"]]
    saved = read_saved(tmp_path / "looped", "mnist" if recipe is mnist else "mnist-deep")
    assert best["accuracies"][-1] == max(each["accuracies"][-1] for each in looped["trials"])
    best_weights = load_file(tmp_path / "looped" / "trials" / f"{looped['best']:03d}" / f"{name}.safetensors")
    assert all(torch.equal(best_weights[key], tensor) for key, tensor in saved.network.state_dict().items())


def test_one_that_diverges_leaves_the_others_as_they_are(data, tmp_path, capsys):
    alone = fused(mnist, data, tmp_path / "alone", settings=[{"lr": 0.002}])
    both = fused(mnist, data, tmp_path / "both", settings=[{"lr": 1e30, "seed": 3}, {"lr": 0.002}])
    assert both["best"] == 1 and both["trials"][0]["diverged"] > 1
    assert both["trials"][0]["losses"] == [None, None]
    assert both["trials"][1]["losses"] == alone["trials"][0]["losses"]
    assert "diverged at step" in capsys.readouterr().out
    with pytest.raises(TrainError, match="became"):
        fused(mnist, data, tmp_path / "none", settings=[{"lr": 1e30}, {"lr": 1e31}])


@pytest.mark.slow
def test_resumed_is_bit_identical(wide_data, tmp_path):
    """Dropout and augmentation go on where they were, each trial's own."""
    told = ["--fused-settings", json.dumps(SETTINGS[:2])]
    train(mnist_deep, wide_data, tmp_path / "whole", *told)
    after_one = tmp_path / "whole" / "checkpoints" / "checkpoint-0000000003.pt"
    train(mnist_deep, wide_data, tmp_path / "parts", *told, "--resume", str(after_one))
    whole, parts = (load_newest(tmp_path / name / "checkpoints", print)["model"] for name in ("whole", "parts"))
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    train(mnist_deep, wide_data, tmp_path / "parts", *told, "--resume")  # nothing is left to train
    assert json.loads((tmp_path / "parts" / "trials.json").read_text())["best"] is not None


def test_the_saved_model_stays_unless_it_is_beaten(data, tmp_path, capsys):
    fused(mnist, data, tmp_path)
    before = (tmp_path / "mnist.safetensors").read_bytes()
    fused(mnist, data, tmp_path, "--fused-unless", "1.0", settings=[{"lr": 0.004}])
    assert (tmp_path / "mnist.safetensors").read_bytes() == before
    assert "the saved model stays" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "options", "sentence"),
    [
        ('[{"batch": 32}]', [], "cannot differ in batch"),
        ("[]", [], "0 trials cannot be fused"),
        ('{"lr": 1}', [], "no list of settings"),
        ('[{"lr": 0}]', [], "above 0"),
        ('[{"lr": "fast"}]', [], "'fast', no number"),
        ('[{"seed": 1.5}]', [], "whole seed"),
        ("[{]", [], "no JSON"),
        ("/none.json", [], "cannot read /none.json"),
        ('[{"lr": 0.1}]', ["--patience", "2"], "--patience is not for trials"),
        ('[{"lr": 0.1}]', ["--engine", "compile"], "--engine compile is not for trials"),
        ('[{"lr": 0.1}]', ["--fused-way", "kernels"], "no GPU"),
    ],
)
def test_what_cannot_be_meant(data: Path, tmp_path: Path, settings: str, options: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as told:
        train(mnist, data, tmp_path, "--fused-settings", settings, *options)
    assert told.value.fix
