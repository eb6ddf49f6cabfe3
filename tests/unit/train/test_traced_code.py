"""Which code of a module's own can be read."""

import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train.traced_code import NotTraceable, read  # noqa: E402

pytestmark = pytest.mark.torch


class Optional(nn.Module):
    def forward(self, x, mask=None):
        return x if mask is None else x * mask


class Asking(nn.Module):
    def forward(self, x):
        return x if isinstance(x, torch.Tensor) else x[0]


class Drawing(nn.Module):
    def forward(self, x):
        return x * random.random()


@pytest.mark.parametrize("kind", [Optional, Asking, Drawing])
def test_code_that_may_do_otherwise_is_not_read(kind):
    random.seed(3)
    before = random.getstate()
    with pytest.raises(NotTraceable, match=kind.__name__):
        read(kind())
    assert random.getstate() == before
