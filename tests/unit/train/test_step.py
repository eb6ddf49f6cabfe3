"""One step, in every way of running it: the numbers stay the same."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train.data.images import stream_images  # noqa: E402
from seatrial.train.errors import TrainError  # noqa: E402
from seatrial.train.loop import Settings, fit  # noqa: E402
from seatrial.train.optim.schedules import cosine  # noqa: E402
from seatrial.train.progress import Outcome  # noqa: E402
from seatrial.train.step import Step  # noqa: E402
from seatrial.train.trackers import Trackers  # noqa: E402

pytestmark = pytest.mark.torch
Make = Callable[..., Step]


def train(step: Step, epochs: int = 3, **settings: Any) -> Outcome:
    return fit(step, lambda: {"test_loss": 1.0, "accuracy": 0.5}, Trackers([]), Settings(epochs, **settings))


def test_learns_and_repeats_itself(make_step: Make) -> None:
    first, again = train(make_step()), train(make_step())
    assert first.losses == again.losses
    assert len(first.losses) == 3 * 5 and first.examples == 3 * 130
    assert first.losses[-1] < 0.5 * first.losses[0]


def test_equals_a_plain_loop(make_step: Make) -> None:
    """The same maths written out: torch's Adam, batches by hand."""
    ours = train(make_step(), epochs=2).losses
    step = make_step()
    optimizer = torch.optim.Adam(step.model.parameters(), lr=1e-2)
    losses = []
    for epoch in (1, 2):
        step.source.start(epoch, 0)
        for number, span in enumerate(step.source.spans):
            images, labels = step.source.load(torch.tensor([number]), span.shape, 0, span.shape.rows)
            loss = nn.functional.cross_entropy(step.model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert ours == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("accumulation", [2, 4, 32])
def test_accumulation_gives_the_same_curve(make_step: Make, accumulation: int) -> None:
    whole, parts = train(make_step()).losses, train(make_step(accumulation=accumulation)).losses
    assert parts == pytest.approx(whole, rel=1e-4)


def test_streaming_gives_the_same_curve(make_step: Make) -> None:
    assert train(make_step(source=stream_images)).losses == train(make_step()).losses


def test_out_of_memory_gives_the_curve_of_the_smaller_micro_batch(
    make_step: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    def network() -> nn.Module:
        layers = (nn.Flatten(), nn.Linear(36, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
        return nn.Sequential(*layers)

    def loss(model: nn.Module, images: Any, labels: Any) -> Any:
        result = nn.functional.cross_entropy(model(images), labels)
        if len(labels) > 9:
            raise torch.OutOfMemoryError("CUDA out of memory (made by the test)")
        return result

    recovered = make_step(network=network, loss=loss)
    small = make_step(network=network, accumulation=4)
    assert train(recovered).losses == train(small).losses
    assert recovered.micro_batch.rows == 8
    for name, tensor in small.model.state_dict().items():
        assert torch.equal(tensor, recovered.model.state_dict()[name]), name  # running means were put back as well
    assert "out of memory with micro-batches of 16 rows: continuing with 8" in capsys.readouterr().out


def test_out_of_memory_with_one_row_is_one_sentence(make_step: Make) -> None:
    def loss(model: nn.Module, images: Any, labels: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory (made by the test)")

    with pytest.raises(TrainError, match="out of memory even with micro-batches of 1 row"):
        train(make_step(loss=loss))


def test_schedule_moves_the_rate(make_step: Make) -> None:
    step = make_step(schedule=cosine(), epochs=2)
    train(step, epochs=2)
    rate = step.optimizer.param_groups[0]["lr"]
    assert 0 < rate.item() < 1e-2 * 0.05


def test_schedule_moves_a_rate_that_is_a_number(make_step: Make) -> None:
    step = make_step(optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1), schedule=cosine(), epochs=2)
    train(step, epochs=2)
    assert step.optimizer.param_groups[0]["lr"] == 0.1 * cosine()(9, 10)


def test_clipping_bounds_the_update(make_step: Make) -> None:
    def sgd(model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=torch.tensor(1.0))

    step = make_step(optimizer=sgd, clip_norm=1e-3)
    before = [parameter.clone() for parameter in step.model.parameters()]
    step.source.start(1, 0)
    step.run_recovering(step.source.spans[0].shape)
    moved = sum((a - b).square().sum() for a, b in zip(before, step.model.parameters(), strict=True)).sqrt()
    assert moved.item() == pytest.approx(1e-3, rel=1e-3)


def test_restore_undoes_steps_in_place(make_step: Make) -> None:
    from seatrial.train.saving.checkpoint import snapshot

    step = make_step()
    step.source.start(1, 0)
    before = snapshot(step.state())
    pointers = [parameter.data_ptr() for parameter in step.model.parameters()]
    shape = step.source.spans[0].shape
    for _ in range(3):
        step.run_recovering(shape)
    step.restore(before, forget_optimizer=True)
    assert [parameter.data_ptr() for parameter in step.model.parameters()] == pointers
    assert train(step).losses == train(make_step()).losses


@pytest.mark.slow
def test_compiled_gives_the_same_curve(make_step: Make) -> None:
    compiled = train(make_step(), engine="compile").losses
    assert compiled == pytest.approx(train(make_step()).losses, rel=1e-3)


def test_bf16_learns_too(make_step: Make) -> None:
    losses = train(make_step(precision="bf16")).losses
    assert losses != train(make_step()).losses
    assert losses[-1] < 0.5 * losses[0]
