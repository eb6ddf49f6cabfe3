import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train.optim.optimizer import Average  # noqa: E402

pytestmark = pytest.mark.torch


def test_an_average_follows_a_buffer_that_grows():
    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("angles", torch.ones(2), persistent=False)

    model = nn.Sequential(Angles())
    average = Average(model, 0.9)
    model[0].angles = torch.arange(5.0)
    average.update()
    assert torch.equal(average.model[0].angles, torch.arange(5.0))
    assert average.model[0].angles is not model[0].angles
    del model[0].angles
    average.update()
