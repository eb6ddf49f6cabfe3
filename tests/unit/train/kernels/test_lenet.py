"""The classic network's step in few launches, run on the CPU thread by thread, against torch in double precision."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from seatrial.recipes.mnist import network  # noqa: E402
from seatrial.train.kernels import lenet  # noqa: E402

pytestmark = pytest.mark.torch


def error(own, exact):
    """Return the parameters of the norm."""
    return float((own.detach().double() - exact.detach().double()).norm() / exact.detach().double().norm())


def held_in_bf16(model):
    """Numbers that bf16 holds: what is left is the rounding of activations."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    return model


class Rounded(torch.autograd.Function):
    """x as bf16 holds it; gradients as if it had not been rounded."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().double()

    @staticmethod
    def backward(ctx, grad):
        return grad


def exact_loss(model, images, labels):
    """In double precision, what a layer hands on rounded as the kernels do."""
    x = images.double()
    for number, layer in enumerate(model):
        x = layer(x)
        if number in (2, 5, 8):
            x = Rounded.apply(x)
    return F.cross_entropy(x, labels)


@pytest.mark.parametrize(("height", "width", "rows"), [(14, 17, 5), pytest.param(28, 28, 66, marks=pytest.mark.slow)])
def test_loss_and_every_gradient(device, height, width, rows):
    torch.manual_seed(0)
    model = held_in_bf16(network(height, width, 10)).to(device, memory_format=torch.channels_last)
    exact = copy.deepcopy(model).double()
    images, labels = torch.randn(rows, 1, height, width, device=device), torch.randint(0, 10, (rows,), device=device)
    with torch.autocast(device.type, torch.bfloat16):
        loss = lenet.cross_entropy(model, images, labels)
    assert type(loss.grad_fn).__name__ == "_OpBackward"
    expected = exact_loss(exact, images, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        predicted = lenet.logits(model.eval(), images)
    torch.testing.assert_close(F.cross_entropy(predicted, labels), loss.detach())
    (loss * 3).backward()
    (expected * 3).backward()
    for (name, own), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert own.grad.dtype == torch.float32 and own.grad.stride() == own.stride()
        assert error(own.grad, other.grad) < 0.01, name


def test_other_networks_are_left_alone():
    layers = list(network(28, 28, 10))
    assert lenet.shape_of(layers, 28, 28).features == 1600
    assert lenet.shape_of(layers, 20, 20) is None
    layers[3] = nn.Conv2d(32, 64, 3, padding=1)
    assert lenet.shape_of(layers, 28, 28) is None
    assert lenet.shape_of(layers[:-1], 28, 28) is None
