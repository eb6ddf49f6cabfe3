"""The loop: resume, NaN, early stopping, the best checkpoint, engines that are not there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train.engine import choose_engine  # noqa: E402
from seatrial.train.errors import CheckpointError, DivergedError, InputError  # noqa: E402
from seatrial.train.loop import Settings, fit  # noqa: E402
from seatrial.train.optim.optimizer import adam  # noqa: E402
from seatrial.train.progress import Outcome  # noqa: E402
from seatrial.train.saving.checkpoint import checkpoints, load  # noqa: E402
from seatrial.train.step import Step  # noqa: E402
from seatrial.train.trackers import Trackers  # noqa: E402

pytestmark = pytest.mark.torch
Make = Callable[..., Step]


def train(step: Step, epochs: int = 3, losses: list[float] | None = None, **settings: Any) -> Outcome:
    answers = iter(losses or [1.0] * 100)
    return fit(step, lambda: {"test_loss": next(answers), "accuracy": 0.5}, Trackers([]), Settings(epochs, **settings))


def test_nan_stops_names_the_step_and_keeps_what_was_good(make_step: Make, tmp_path: Path) -> None:
    calls = 0

    def loss(model: nn.Module, images: Any, labels: Any) -> Any:
        nonlocal calls
        calls += 1
        value = nn.functional.cross_entropy(model(images), labels)
        return value * float("nan") if calls == 5 + 3 else value

    with pytest.raises(DivergedError, match="the loss became nan in epoch 2 at step 3"):
        train(make_step(loss=loss), checkpoints=tmp_path)
    (good,) = checkpoints(tmp_path)
    assert good.name == "checkpoint-0000000005.pt"
    assert all(tensor.isfinite().all() for tensor in load(good)["model"].values())


def test_early_stopping_and_the_best_checkpoint(make_step: Make, tmp_path: Path) -> None:
    outcome = train(make_step(), 10, [3.0, 2.0, 2.5, 2.1, 1.0], patience=2, checkpoints=tmp_path, keep=1)
    assert outcome.epochs == 4
    assert load(tmp_path / "best.pt")["epoch"] == 3  # saved after epoch 2: goes on with the third
    assert len(checkpoints(tmp_path)) == 1


def test_a_checkpoint_of_another_model(make_step: Make, tmp_path: Path) -> None:
    train(make_step(), 1, checkpoints=tmp_path)
    with pytest.raises(CheckpointError, match=r"1\.weight is \(16, 36\) there, \(8, 36\) here"):
        train(
            make_step(network=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))),
            resume=tmp_path,
        )


def test_a_model_is_no_checkpoint(make_step: Make, tmp_path: Path) -> None:
    torch.save(make_step().model.state_dict(), tmp_path / "mnist.pth")
    with pytest.raises(CheckpointError, match="is not a checkpoint: it contains model weights"):
        train(make_step(), resume=tmp_path / "mnist.pth")


def test_a_graph_on_a_cpu_falls_back_with_the_reason(make_step: Make, capsys: pytest.CaptureFixture[str]) -> None:
    graph = train(make_step(), engine="graph").losses
    assert "no CUDA graph on a CPU; steps run eagerly" in capsys.readouterr().out
    assert graph == train(make_step()).losses


def test_unknown_engine(make_step: Make) -> None:
    with pytest.raises(InputError, match="engine 'warp' is not one of auto, eager"):
        train(make_step(), engine="warp")


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_training_that_is_done_is_tested_alone(make_step: Make, tmp_path: Path, epochs: int) -> None:
    train(make_step(), 2, losses=[1.0, 0.5], checkpoints=tmp_path)
    outcome = train(make_step(), epochs, losses=[0.25], resume=tmp_path)
    assert (outcome.metrics, outcome.epochs, outcome.losses) == ({"accuracy": 0.5, "test_loss": 0.25}, 0, [])


def test_compiling_tries_every_phase(make_step: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def loss(model: nn.Sequential, images: Any, labels: Any) -> Any:
        seen.append(cast(nn.Linear, model[1]).weight.requires_grad)
        return nn.functional.cross_entropy(model(images), labels)

    frozen_after = [(cast(nn.Linear, model[1]).weight, 1)]
    step = make_step(network=lambda: model, loss=loss, frozen_after=frozen_after, epochs=2)
    monkeypatch.setattr(step, "compile", lambda: None)
    choose_engine("compile", step, print)
    assert set(seen) == {True, False}


def test_checkpoints_of_some_epochs_only(make_step: Make, tmp_path: Path) -> None:
    train(make_step(), 5, losses=[1.0] * 5, checkpoints=tmp_path, save_every=3, keep=9)
    found = {torch.load(path, weights_only=True)["epoch"] for path in tmp_path.glob("checkpoint-*.pt")}
    assert found == {2, 4, 6}  # the best, every third, and the last: each names the epoch to go on with


def test_a_parameter_is_frozen_after_its_epochs(make_step: Make) -> None:
    seen: list[tuple[bool, torch.Tensor]] = []

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def loss(model: nn.Sequential, images: Any, labels: Any) -> Any:
        bias = cast(nn.Linear, model[1]).bias
        seen.append((bias.requires_grad, bias.detach().clone()))
        return nn.functional.cross_entropy(model(images), labels)

    frozen_after: list[tuple[torch.Tensor, int]] = []

    def optimizer(model: nn.Sequential) -> Any:
        frozen_after.append((cast(nn.Linear, model[1]).bias, 2))  # the model is there when the step is made
        return adam(model, 1e-2)

    frozen = make_step(network=network, loss=loss, optimizer=optimizer, frozen_after=frozen_after)
    assert frozen.phases == 1
    bias = cast(nn.Linear, frozen.model[1]).bias
    first = bias.detach().clone()
    train(frozen, 4, losses=[1.0] * 4)
    steps = len(frozen.source.spans)
    assert [wanted for wanted, _ in seen] == [True] * 2 * steps + [False] * 2 * steps
    assert not torch.equal(seen[2 * steps][1], first)
    assert torch.equal(seen[2 * steps][1], seen[-1][1])
    frozen.start_epoch(0, 0)
    assert bias.requires_grad
