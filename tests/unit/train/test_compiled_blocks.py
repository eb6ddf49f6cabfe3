"""Which blocks of a model are compiled one by one."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from seatrial.train import Step, batches, fit  # noqa: E402
from seatrial.train.compiled_blocks import repeated  # noqa: E402

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self, width=8, slope=1.0):
        super().__init__()
        self.slope, self.inner = slope, nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return x + self.slope * self.inner(x)


def test_outermost_blocks_alike_that_are_most_of_a_model():
    model = nn.Sequential(nn.Linear(8, 8), *(Block() for _ in range(5)))
    assert repeated(model) == list(model[1:])
    assert repeated(nn.Sequential(nn.Linear(8, 800), *(Block() for _ in range(5)))) == []
    assert repeated(nn.Sequential(*(Block(8 + number) for number in range(5)))) == []
    other = nn.Sequential(Block(), Block(), Block(slope=2.0), Block(slope=2.0))
    assert repeated(other) == [block.inner for block in other], "those are alike inside"
    assert repeated(nn.Linear(3, 3)) == []


def test_blocks_are_compiled_in_steps_alone(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda call, **named: lambda *given: (called.append(1), call(*given))[1])
    torch.manual_seed(0)
    called, model = [], nn.Sequential(*(Block() for _ in range(3)), nn.Linear(8, 2))
    source = batches(TensorDataset(torch.randn(8, 8), torch.zeros(8, dtype=torch.long)), 4)
    step = Step(model, classify, torch.optim.SGD(model.parameters(), lr=0.1), source)
    source.start(1, 0)
    step.compile()
    step.run_fixed(source.spans[0].shape)
    assert len(called) == 3
    model(torch.randn(1, 8))
    assert len(called) == 3
    step.uncompile()
    step.run_fixed(source.spans[0].shape)
    assert len(called) == 3


@pytest.mark.slow
def test_compiled_blocks_train_alike():
    def losses(engine):
        torch.manual_seed(0)
        model = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(8, 2))
        source = batches(TensorDataset(torch.randn(32, 8), torch.arange(32) % 2), 8)
        step = Step(model, classify, torch.optim.SGD(model.parameters(), lr=0.1), source, epochs=2)
        return fit(step, engine=engine).losses

    assert losses("compile") == pytest.approx(losses("eager"), rel=1e-4)


def classify(model, x, y):
    return nn.functional.cross_entropy(model(x), y)
