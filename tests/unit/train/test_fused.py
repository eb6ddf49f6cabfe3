"""Our kernels, run on the CPU thread by thread, against torch's layers in double precision."""

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from seatrial.recipes.mnist import network  # noqa: E402
from seatrial.train import module_patches  # noqa: E402
from seatrial.train.data import images  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.kernels import batch_norm, lenet, runtime  # noqa: E402
from seatrial.train.optim.optimizer import Adam, decay_groups  # noqa: E402
from seatrial.train.precision import Precision  # noqa: E402

pytestmark = pytest.mark.torch


def deep():
    """The layers of mnist-deep, two of four convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Dropout(0.0), nn.Linear(40, 10),
    )  # fmt: skip


@pytest.mark.parametrize("augment", [None, lambda images: images * 0.5])
def test_batches_are_the_same_gathered_in_one_kernel(request, augment):
    data = images.ImageSet(torch.randint(0, 256, (37, 3, 5, 4), dtype=torch.uint8), torch.arange(37) % 10, 10)
    normalise = images.Normalisation.of(data.images_NCHW)
    source = images.ResidentImages(data, normalise, 8, Ranks(0, 1, torch.device("cpu")), 0, augment, channels_last=True)
    source.start(1, 0)
    arguments = (torch.tensor([2]), source.spans[2].shape, 3, 4)
    expected = source.load(*arguments)
    request.getfixturevalue("kernels_on_cpu")
    for own, other in zip(source.load(*arguments), expected, strict=True):
        torch.testing.assert_close(own, other)
        assert own.stride() == other.stride()


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_takes_the_same_steps(request, decoupled):
    def trained():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Conv2d(3, 40, 3), nn.Flatten(), nn.Linear(40, 10)).to(
            memory_format=torch.channels_last
        )
        optimizer = Adam(decay_groups(model, 0.1), torch.tensor(1e-2), decoupled=decoupled)
        for _ in range(20):
            for parameter in model.parameters():
                parameter.grad = None
            model(torch.randn(4, 3, 3, 3)).square().sum().backward()
            optimizer.step()
        return list(model.parameters())

    expected = trained()
    request.getfixturevalue("kernels_on_cpu")
    for own, other in zip(trained(), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_prints_whose_layers_run(monkeypatch):
    gpu = torch.device("cuda", 0)
    for precision, message in (("fp32", "in fp32 on cpu"), ("fp16", "in fp16 on cuda")):
        device = torch.device("cpu") if precision == "fp32" else gpu
        for prepare in (partial(lenet.prepare, size=(28, 28)), module_patches.prepare):
            found = prepare(network(28, 28, 10), Precision(precision, device))
            assert f"layers: torch's own, {message}" in found
    monkeypatch.setattr(runtime, "unavailable", lambda: "OSError: no libnvrtc")
    message = lenet.prepare(network(28, 28, 10), Precision("bf16", gpu), (28, 28))
    assert message == "layers: torch's own, for kernels cannot be compiled here (OSError: no libnvrtc)"


def test_describes_what_is_taken_inside_a_module_and_what_is_left(monkeypatch):
    built, bf16 = [], Precision("bf16", torch.device("cuda", 0))
    monkeypatch.setattr(runtime, "unavailable", lambda: None)
    monkeypatch.setattr(runtime, "build", lambda text, device: built.append(text))
    message, found = module_patches.prepare(nn.Sequential(nn.Flatten()), bf16)
    assert message.startswith("layers: torch's own: no batch normalisation is inside") and found is None
    net = nn.Sequential(deep(), nn.Conv2d(1, 1, 1), nn.Sequential(nn.BatchNorm2d(20)))
    message, _ = module_patches.prepare(net, bf16)
    assert message == (
        "layers: 2 batch normalisations with what follows them run in kernels of this library; "
        "5 products use bf16 copies of their weights; left to torch: 2.0 (of a kind that no kernel fits)"
    )
    assert len(built) == 2, "each width's text"


def test_never_inside_of_torch_compile(monkeypatch):
    """torch 2.11 traces autograd functions that return ``y.contiguous()`` into steps that leave layers untrained."""
    monkeypatch.setattr(runtime, "unavailable", lambda: None)
    gpu = torch.device("cuda")

    def traced(x):
        return x + 1 if runtime.usable(gpu) else x

    assert traced(torch.zeros(1)).item() == 1
    assert torch.compile(traced, backend="eager")(torch.zeros(1)).item() == 0


def error(ours, exact):
    """Relative, in the Frobenius norm."""
    return ((ours.double() - exact).norm() / exact.double().norm()).item()


# Inside of any module -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("summed", [False, True])
def test_norm_sum_and_activation(kernels_on_cpu, activation, dtype, summed):
    if summed and activation == "gelu":
        pytest.skip("never put together")
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(64)
    nn.init.uniform_(norm.weight, -1, 1)
    nn.init.uniform_(norm.bias, -1, 1)
    exact = copy.deepcopy(norm).double()
    x, residual = (torch.randn(3, 64, 7, 9).to(dtype).to(memory_format=torch.channels_last) for _ in range(2))
    own = [x.clone().requires_grad_(), residual.clone().requires_grad_()]
    theirs = [x.double().requires_grad_(), residual.double().requires_grad_()]
    out = module_patches.NormThen(norm, activation)(own[0], own[1] if summed else None)
    expected = exact(theirs[0]) + (theirs[1] if summed else 0)
    expected = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu}[activation](expected)
    most = 1e-5 if dtype == torch.float32 else 1e-2
    assert type(out.grad_fn).__name__ == "_OpBackward"
    assert error(out, expected) < most
    slope = torch.randn_like(expected)
    (out * slope.to(dtype)).sum().backward()
    (expected * slope.to(dtype).double()).sum().backward()
    count = 1 + summed
    pairs = zip([*own[:count], *norm.parameters()], [*theirs[:count], *exact.parameters()], strict=True)
    for ours, other in pairs:
        assert error(ours.grad, other.grad) < most * 4
    for ours, other in zip(norm.buffers(), exact.buffers(), strict=True):
        assert error(ours, other) < most


@pytest.mark.parametrize(("channels", "blocks"), [(32, 37), (1024, 18)])
def test_sums_of_many_blocks(kernels_on_cpu, monkeypatch, channels, blocks):
    monkeypatch.setattr(batch_norm, "blocks_over", lambda *given: blocks)
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(channels)
    exact = copy.deepcopy(norm).double()
    x = torch.randn(2, channels, 3, 5).to(memory_format=torch.channels_last).requires_grad_()
    theirs = x.detach().double().requires_grad_()
    then = module_patches.NormThen(norm, "relu")
    for _ in range(2):  # from zero again
        out, expected = then(x), F.relu(exact(theirs))
        (out * x.detach().cos()).sum().backward()
        (expected * theirs.detach().cos()).sum().backward()
    pairs = [(out, expected), (x.grad, theirs.grad), (norm.weight.grad, exact.weight.grad)]
    assert all(error(own, other) < 1e-5 for own, other in [*pairs, (norm.running_var, exact.running_var)])


@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_any_module_runs_by_kernels_inside(kernels_on_cpu, name):
    from own_models import OWN, ResNet, pictures

    torch.manual_seed(0)
    model = ResNet(widths=(32, 64)) if name == "resnet" else OWN["unet"][0]()
    if name == "unet":
        model.down, model.up = model.twice(3, 32), nn.ConvTranspose2d(16, 32, 2, 2)
        model.deep, model.last[0] = model.twice(32, 16), model.twice(64, 32)
        model.last[1] = nn.Conv2d(32, 2, 1)
    exact = copy.deepcopy(model).double()
    found = module_patches.ModuleKernels(model)
    loss, (images, labels) = OWN[name][1], pictures()
    with found.running():
        value = loss(model, images[:4], labels[:4])
    calls = len([1 for norm, _ in found.norms])
    assert calls == {"resnet": 6, "unet": 4}[name]
    assert set(found.left) == ({"deep.1", "deep.4"} if name == "unet" else set())
    assert not any("forward" in vars(module) for module in model.modules()), "the model is as it was"
    expected = loss(exact, images[:4].double(), labels[:4])
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    expected.backward()
    for (key, own), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        none = other.grad.abs().max() < 1e-15  # of a bias before a normalisation
        assert own.grad.abs().max() < 1e-7 if none else error(own.grad, other.grad) < 1e-3, key
    for (key, own), other in zip(model.named_buffers(), exact.named_buffers(), strict=True):
        assert error(own, other[1]) < 1e-5, key


def test_what_cannot_be_read_is_left_and_named():
    from own_models import Block

    class Branches(Block):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    class Settled(Block):
        twice = False

        def forward(self, x):
            out = F.relu(self.bn1(self.conv1(x)))
            return out * 2 if self.twice else out

    model = nn.ModuleList([Branches(32, 32, 1), Settled(32, 32, 1), nn.BatchNorm1d(32), nn.BatchNorm2d(20)])
    found = module_patches.ModuleKernels(model)
    assert set(found.left) == {"0.bn1", "0.bn2", "1.bn2", "2", "3"}
    assert "Branches's code cannot be read" in found.left["0.bn1"]
    x = torch.randn(2, 32, 4, 4)
    with found.running():
        once = model[1](x)
        model[1].twice = True
        assert torch.equal(model[1](x), once * 2), "a setting that changed is not frozen"
