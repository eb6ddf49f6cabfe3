"""Slices and sums with dropout in any module's code, by kernels run on the CPU thread by thread."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from cuda_on_cpu import kernels_on_cpu  # noqa: E402, F401
from seatrial.train import inside  # noqa: E402
from seatrial.train.kernels import dropadd, unbind  # noqa: E402
from seatrial.train.reading import Unreadable, read  # noqa: E402

pytestmark = pytest.mark.torch


class Attention(nn.Module):
    def __init__(self, width=32, heads=4, dropout=0.25):
        super().__init__()
        self.heads, self.dropout, self.drop = heads, dropout, nn.Dropout(dropout)
        self.qkv, self.out, self.wide = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(mixed), self.dropout, self.training)
        return self.drop(self.wide(x)) + x


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_attention_keeps_its_gradients(kernels_on_cpu, dropout):  # noqa: F811
    torch.manual_seed(0)
    model, x = Attention(dropout=dropout), torch.randn(3, 6, 32)
    plain = copy.deepcopy(model)
    found = inside.Inside(model)
    assert found.rewritten == (3 if dropout else 1) and found.used
    with found.running():
        torch.manual_seed(1)
        out = model(x)
        out.square().sum().backward()
        torch.manual_seed(1)
        assert torch.equal(out, model(x)), "the seed is torch's"
    assert "forward" not in vars(model)
    if not dropout:
        plain(x).square().sum().backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-5)
    model.eval()
    with found.running():
        assert torch.equal(model(x), plain.eval()(x))


@pytest.mark.parametrize("kinds", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)])
@pytest.mark.parametrize("probability", [0.2, 0.7])
def test_a_sum_with_dropout(kernels_on_cpu, kinds, probability):  # noqa: F811
    torch.manual_seed(0)
    x, y = torch.randn(40, 256, dtype=kinds[0]).requires_grad_(), torch.rand(40, 256, dtype=kinds[1]).add(1)
    y.requires_grad_()
    out = dropadd.drop_add(x, y, probability)
    slope = torch.rand_like(out).add(1)
    (out * slope).sum().backward()
    stays = y.grad != 0
    assert stays.double().mean().item() == pytest.approx(1 - probability, abs=0.02)
    both = (stays[:, 1:] & stays[:, :-1]).double().mean().item()
    assert both == pytest.approx((1 - probability) ** 2, abs=0.02), "neighbours are independent"
    assert torch.equal(x.grad, slope)
    torch.testing.assert_close(out, (x.double() + stays * y.double() / (1 - probability)).to(out.dtype))
    torch.testing.assert_close(y.grad, (stays * slope.double() / (1 - probability)).to(y.dtype))
    assert not torch.equal(dropadd.drop_add(x, y, probability), out)


@pytest.mark.parametrize("place", [(2, 0, 3, 1, 4), (0, 1, 2, 3, 4)])
def test_gradients_of_slices_lie_where_the_whole_does(kernels_on_cpu, monkeypatch, place):  # noqa: F811
    moved, plain = [], unbind.put
    monkeypatch.setattr(unbind, "put", lambda *given: (moved.append(1), plain(*given)))
    own = torch.randn(3, 2, 3, 2, 16).requires_grad_()
    other = own.detach().clone().requires_grad_()
    slopes = [torch.randn_like(part) for part in own.permute(place).unbind(0)]
    slopes[0] = slopes[0].mT.contiguous().mT  # steps that no kernel knows
    parts = unbind.unbind(own.permute(place), own.permute(place).shape[0])
    used = len(parts) - 1  # of the last one nothing is read
    sum((part * slope).sum() for part, slope in zip(parts[:used], slopes[:used], strict=True)).backward()
    sum((part * slope).sum() for part, slope in zip(other.permute(place)[:used], slopes[:used], strict=True)).backward()
    torch.testing.assert_close(own.grad, other.grad)
    assert len(moved) >= used - 1


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
    with pytest.raises(Unreadable, match=kind.__name__):
        read(kind())
    assert random.getstate() == before


def test_what_is_not_tensors_or_has_other_settings_runs_as_written(kernels_on_cpu):  # noqa: F811
    model, x = Attention(), torch.randn(2, 5, 32)
    found = inside.Inside(model)
    model.drop.p, model.dropout = 0.0, 0.0
    with found.running():
        assert torch.equal(model(x), model(x))
