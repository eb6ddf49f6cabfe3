"""Layers with bf16 copies of their weights give what autocast gives."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from seatrial.train.autocast_weights import AutocastLayers, plain, product  # noqa: E402

pytestmark = pytest.mark.torch


class Net(nn.Module):
    """Uses one matrix twice, one convolution twice, a bias, groups, stride, and a layer of its own in fp32."""

    def __init__(self):
        super().__init__()
        self.first, self.again = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, "same", groups=2, bias=False)
        self.wide, self.back, self.last = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 5, bias=False)
        self.exact = nn.Linear(8, 8)

    def forward(self, x):
        x = self.again(F.relu(self.again(self.first(x)))).mean((2, 3))
        x = x + self.back(F.gelu(self.wide(x)))
        with torch.autocast("cpu", enabled=False):
            x = self.exact(x.to(self.exact.weight.dtype))
        return self.last(x) @ self.last.weight  # used as it is, too


def gradients(model, x, running=None):
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        if running:
            with running():
                loss = model(x).square().mean()
                loss.backward()
        else:
            loss = model(x).square().mean()
            loss.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def test_loss_is_autocasts_to_the_bit_and_gradients_are_no_worse():
    torch.manual_seed(0)
    model, x = Net(), torch.randn(6, 3, 9, 9)
    made = AutocastLayers(model)
    assert len(made.layers) == 6
    loss, own = gradients(model, x, made.running)
    plainly, theirs = gradients(model, x)
    assert torch.equal(loss, plainly)
    assert not any("forward" in vars(layer) for layer in model.modules())
    exact = copy.deepcopy(model).double()
    exact(x.double()).square().mean().backward()
    for name, parameter in exact.named_parameters():
        far = [(found[name].double() - parameter.grad).norm() / parameter.grad.norm() for found in (own, theirs)]
        assert own[name].dtype == torch.float32
        assert far[0] < far[1] * 1.2 + 1e-3, name


def test_a_weight_that_changed_since_is_used_as_it_is():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.randn(3, 4)
    made = AutocastLayers(model)
    with torch.autocast("cpu", torch.bfloat16), made.running():
        before = model(x)
        with torch.no_grad():
            model[0].weight.mul_(2)
        model[1].weight = nn.Parameter(torch.ones(2, 4))
        changed = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(changed, model(x))
    assert not torch.equal(changed, before)


def test_layers_with_more_than_their_own_code_are_left():
    hooked, frozen, reflecting = nn.Linear(2, 2), nn.Linear(2, 2), nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
    hooked.register_forward_hook(lambda *given: None)
    frozen.weight.requires_grad_(False)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    uneven = nn.Conv2d(2, 2, 2, padding="same")
    layers = [hooked, frozen, reflecting, normed, uneven, nn.Linear(2, 2).double()]
    assert not any(plain(layer) for layer in layers)
    assert AutocastLayers(nn.ModuleList(layers)).layers == []


def test_a_second_derivative_is_refused_not_wrong():
    model, x = nn.Linear(3, 1), torch.randn(2, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), AutocastLayers(model).running():
        loss = model(x).sum()
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(loss, x, create_graph=True)


def test_one_example_alone_runs_as_written():
    model, x = nn.ModuleList([nn.Conv2d(2, 3, 3), nn.Linear(5, 4)]), [torch.randn(2, 5, 5), torch.randn(5)]
    with torch.autocast("cpu", torch.bfloat16), AutocastLayers(model).running():
        for layer, given in zip(model, x, strict=True):
            layer(given).sum().backward()
            assert layer.weight.grad is not None


def test_product_is_fp32():
    left, right = torch.randn(3, 40).bfloat16(), torch.randn(40, 2).bfloat16()
    assert product(left, right).dtype == torch.float32
