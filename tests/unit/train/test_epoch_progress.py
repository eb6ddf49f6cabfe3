"""Within an epoch: lines for people, and the same losses for the trackers as without them, only sooner."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train import progress  # noqa: E402
from seatrial.train.errors import DivergedError  # noqa: E402
from seatrial.train.loop import Settings, fit  # noqa: E402
from seatrial.train.step import Step  # noqa: E402
from seatrial.train.trackers import Trackers, Values  # noqa: E402

pytestmark = pytest.mark.torch
Make = Callable[..., Step]


class Kept:
    """Keeps the values it gets."""

    def __init__(self) -> None:
        self.shown: list[Values] = []

    def log(self, values: Values) -> None:
        self.shown.append(values)

    def close(self) -> None:
        """Nothing is held."""


def trained(step: Step, every_s: float, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Values]:
    monkeypatch.setattr(progress, "EVERY_S", every_s)
    kept = Kept()
    fit(step, lambda: {"test_loss": 1.0}, Trackers([kept]), Settings(2, **settings))
    return kept.shown


@pytest.mark.parametrize("log_steps", [100, 2, 0])
def test_the_trackers_get_the_same_losses_once(
    make_step: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log_steps: int
) -> None:
    def losses(shown: list[Values]) -> list[tuple[Any, Any]]:
        return [(one["step"], one["step_loss"]) for one in shown if "step_loss" in one]

    often = trained(make_step(), 0.0, monkeypatch, log_steps=log_steps)
    lines = [line for line in capsys.readouterr().out.splitlines() if ": step " in line]
    seldom = trained(make_step(), 1e9, monkeypatch, log_steps=log_steps)
    assert losses(often) == losses(seldom) and [step for step, _ in losses(often)]
    assert ": step " not in capsys.readouterr().out
    assert len(lines) == 2 * 4  # five steps an epoch, the last of which is the epoch's own line
    assert lines[0].startswith("epoch 1: step 1 of 5, loss ") and lines[0].endswith(" s left")
    assert lines[-1].startswith("epoch 2: step 4 of 5, loss ")


def test_the_first_line_marks_when_the_training_began(make_step: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = trained(make_step(), 1e9, monkeypatch)
    assert shown[0] == {"step": 0, "epoch": 1, "phase": "train"} and "step_loss" in shown[1]


def test_a_loss_that_is_nan_is_not_reported_before_the_epochs_end_names_it(
    make_step: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loss(model: nn.Module, images: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(model(images), labels) * float("nan")

    with pytest.raises(DivergedError, match="in epoch 1 at step 1"):
        trained(make_step(loss=loss), 0.0, monkeypatch)
    assert ": step " not in capsys.readouterr().out
