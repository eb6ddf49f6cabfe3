"""The kernels of the recipe cifar10, run on the CPU thread by thread, against torch's layers in double precision."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from cuda_on_cpu import kernels_on_cpu  # noqa: E402, F401
from seatrial.train.data.crops import AlternatingCrops  # noqa: E402
from seatrial.train.data.images import ImageSet, Normalisation  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.kernels import pooled_norm, whitening  # noqa: E402
from seatrial.train.optim.muon import MuonSgd  # noqa: E402

pytestmark = pytest.mark.torch
LAST = torch.channels_last


def error(own, exact):
    """Of the norm."""
    return float((own.detach().double() - exact.detach().double()).norm() / exact.detach().double().norm())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_pool_norm_and_gelu(kernels_on_cpu, dtype, most):  # noqa: F811
    torch.manual_seed(1)
    x = (torch.randn(3, 64, 7, 6) + 2).to(dtype).to(memory_format=LAST).requires_grad_()
    norm, exact_x = nn.BatchNorm2d(64, eps=1e-12, momentum=0.4), x.detach().double().requires_grad_()
    nn.init.uniform_(norm.bias, -1, 1)
    exact_norm = copy.deepcopy(norm).double()
    out = pooled_norm.pooled_norm_act(x, norm, "gelu")
    assert type(out.grad_fn).__name__ == "PooledNormActBackward"
    expected = F.gelu(exact_norm(F.max_pool2d(exact_x, 2)))
    assert error(out, expected) < most
    gradient = torch.randn(out.shape)
    out.backward(gradient.to(dtype))
    expected.backward(gradient.double())
    assert error(x.grad, exact_x.grad) < most * 2
    assert error(norm.bias.grad, exact_norm.bias.grad) < most
    for own, other in zip(norm.buffers(), exact_norm.buffers(), strict=True):
        assert error(own, other) < 1e-5
    assert not x.grad[:, :, 6].any()  # an odd edge, which no pool sees


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_whitening(kernels_on_cpu, dtype, most):  # noqa: F811
    torch.manual_seed(1)
    images, layer = torch.randn(2, 3, 9, 8).to(dtype).to(memory_format=LAST), nn.Conv2d(3, 24, 2)
    layer.weight.requires_grad = False
    exact = copy.deepcopy(layer).double()
    out, expected = whitening.whitened_gelu(images, layer), F.gelu(exact(images.double()))
    assert type(out.grad_fn).__name__ == "WhitenedGeluBackward"
    assert error(out, expected) < most
    gradient = torch.randn(out.shape)
    out.backward(gradient.to(dtype))
    expected.backward(gradient.double())
    assert error(layer.bias.grad, exact.bias.grad) < most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_crops_are_those_of_torch(request, dtype):
    data = ImageSet(torch.randint(0, 256, (11, 3, 7, 6), dtype=torch.uint8), torch.arange(11) % 10, 10)
    alone, normalise = Ranks(0, 1, torch.device("cpu")), Normalisation.of(data.images_NCHW)
    source = AlternatingCrops(data, normalise, 4, alone, 5, dtype=dtype)
    source.start(2, 0)
    expected = source.load(torch.tensor([1]), source.spans[1].shape, 1, 3)
    request.getfixturevalue("kernels_on_cpu")
    found = source.load(torch.tensor([1]), source.spans[1].shape, 1, 3)
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[0], expected[0])
    assert found[0].stride() == expected[0].stride()


def test_muon_takes_the_same_steps(request):
    def trained():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.Flatten(), nn.Linear(12, 10))
        model = model.to(memory_format=LAST)
        rate = [torch.tensor(value) for value in (0.1, 0.05, 0.02)]
        groups = [
            {"params": [model[0].weight, model[1].weight], "lr": rate[0], "momentum": 0.6, "muon": True},
            {"params": [model[0].bias, model[1].bias], "lr": rate[1], "weight_decay": 0.1},
            {"params": [model[3].weight, model[3].bias], "lr": rate[2]},
        ]
        optimizer = MuonSgd(groups, momentum=0.85)
        for _ in range(6):
            for parameter in model.parameters():
                parameter.grad = None
            model(torch.randn(4, 3, 5, 5)).square().sum().backward()
            optimizer.step()
        return list(model.parameters())

    expected = trained()
    request.getfixturevalue("kernels_on_cpu")
    for own, other in zip(trained(), expected, strict=True):  # products of matrices in bf16 here, in fp32 there
        assert error(own, other.double()) < (0.02 if own.ndim == 4 else 0.05)
