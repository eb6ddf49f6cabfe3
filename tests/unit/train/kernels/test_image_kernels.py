"""Kernels of image recipes and of any module, run on the CPU thread by thread, against torch in double precision."""

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from cuda_on_cpu import error  # noqa: E402
from own_models import OWN, Block, ResNet, pictures  # noqa: E402
from seatrial.recipes.mnist import network  # noqa: E402
from seatrial.train import module_patches  # noqa: E402
from seatrial.train.data import images as image_data  # noqa: E402
from seatrial.train.data.crops import AlternatingCrops  # noqa: E402
from seatrial.train.data.images import ImageSet  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.kernels import batch_norm, lenet, runtime  # noqa: E402
from seatrial.train.kernels import cifar10 as kernels  # noqa: E402
from seatrial.train.optim.muon import MuonSgd  # noqa: E402
from seatrial.train.optim.optimizer import Adam, decay_groups  # noqa: E402
from seatrial.train.precision import Precision  # noqa: E402
from seatrial.train.saving.examples import Normalisation  # noqa: E402

pytestmark = pytest.mark.torch
LAST = torch.channels_last
ALONE = Ranks(0, 1, torch.device("cpu"))
ACTIVATIONS = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu}


def seeded(*shape, device="cpu", dtype=torch.float32, more=0.0):
    torch.manual_seed(1)
    return (torch.randn(*shape) + more).to(device, dtype).to(memory_format=LAST)


# The recipes' own ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("pools", [True, False])
def test_pool_norm_and_gelu(device, dtype, most, pools):
    x = seeded(3, 64, 7, 6, device=device, dtype=dtype, more=2).requires_grad_()
    norm, exact_x = nn.BatchNorm2d(64, eps=1e-12, momentum=0.4, device=device), x.detach().double().requires_grad_()
    nn.init.uniform_(norm.bias, -1, 1)
    exact_norm = copy.deepcopy(norm).double()
    pooled = F.max_pool2d(exact_x, 2) if pools else exact_x
    out, expected = batch_norm.pooled_norm_act(x, norm, "gelu", pools=pools), F.gelu(exact_norm(pooled))
    assert type(out.grad_fn).__name__ == "_OpBackward" and error(out, expected) < most
    gradient = torch.randn(out.shape, device=device)
    out.backward(gradient.to(dtype))
    expected.backward(gradient.double())
    assert error(x.grad, exact_x.grad) < most * 2 and error(norm.bias.grad, exact_norm.bias.grad) < most
    assert all(error(*pair) < 1e-5 for pair in zip(norm.buffers(), exact_norm.buffers(), strict=True))
    assert not pools or not x.grad[:, :, 6].any()  # an odd edge, which no pool sees
    with torch.no_grad():
        out = batch_norm.pooled_norm_act(x, norm.eval(), "gelu", pools=pools)
    assert error(out, F.gelu(exact_norm.eval()(pooled))) < most, "in evaluation"


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float16, 2e-3)])
def test_whitening(device, dtype, most):
    images, layer = seeded(2, 3, 9, 8, device=device, dtype=dtype), nn.Conv2d(3, 24, 2).to(device)
    layer.weight.requires_grad = False
    exact = copy.deepcopy(layer).double()
    out, expected = kernels.whitened_gelu(images, layer), F.gelu(exact(images.double()))
    assert type(out.grad_fn).__name__ == "_OpBackward" and error(out[:, :24], expected) < most
    assert out.shape[1] == 32 and not out[:, 24:].any()  # filled up with zeros
    gradient = torch.randn(out.shape, device=device)
    out.backward(gradient.to(dtype))
    expected.backward(gradient[:, :24].double())
    assert error(layer.bias.grad, exact.bias.grad) < most


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float16, 1e-3)])
def test_pool_last_layer_and_loss(device, dtype, most):
    x = seeded(11, 256, 3, 3, device=device, dtype=dtype).requires_grad_()
    layer, labels = nn.Linear(256, 10, bias=False).to(device), torch.randint(0, 10, (11,), device=device)
    exact, exact_x = copy.deepcopy(layer).double(), x.detach().double().requires_grad_()
    assert kernels.takes_head(x, layer)
    value = kernels.pooled_cross_entropy(x, layer.weight, labels, times=0.5, smoothing=0.2)
    expected = F.cross_entropy(exact(F.max_pool2d(exact_x, 3).flatten(1)) * 0.5, labels, label_smoothing=0.2)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    (value * 3).backward()
    (expected * 3).backward()
    assert error(x.grad, exact_x.grad) < most and error(layer.weight.grad, exact.weight.grad) < 1e-5


def test_layer_behind_channels_of_zeros():
    x, layer = torch.randn(2, 24, 6, 5), nn.Conv2d(24, 32, 3, padding=1, bias=False).to(memory_format=LAST)
    more = torch.cat([x, torch.zeros(2, 8, 6, 5)], 1).to(memory_format=LAST)
    expected = layer(x)
    torch.testing.assert_close(kernels.convolved(more, layer), expected)
    (gradient,) = torch.autograd.grad(expected.square().sum(), layer.weight)
    kernels.convolved(more, layer).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, gradient)
    assert layer.weight.grad.stride() == layer.weight.stride()


@pytest.mark.parametrize("source", ["resident", "augmented", "crops", "crops of 5", "crops of 3, then 4", "half"])
def test_batches_gathered_by_a_kernel_are_those_of_torch(request, source):
    data = ImageSet(torch.randint(0, 256, (37, 3, 7, 6), dtype=torch.uint8), torch.arange(37) % 10, 10)
    normalise, sides = Normalisation.of(data.images_NCHW), {"crops of 5": (5, 5), "crops of 3, then 4": (3, 4)}
    if source in ("resident", "augmented"):
        change = (lambda images: images * 0.5) if source == "augmented" else None
        made = image_data.ResidentImages(data, normalise, 8, ALONE, 0, change)
    else:
        dtype = torch.float16 if source == "half" else torch.float32
        made = AlternatingCrops(data, normalise, 8, ALONE, 5, dtype=dtype, sides=sides.get(source, ()))
    made.start(2, 0)
    arguments = (torch.tensor([2]), made.spans[2].shape, 3, 4)
    expected = made.load(*arguments)
    request.getfixturevalue("kernels_on_cpu")
    for own, other in zip(made.load(*arguments), expected, strict=True):
        torch.testing.assert_close(own, other)
        assert own.stride() == other.stride()
    side = sides.get(source, (0, 0))[1]
    assert tuple(expected[0].shape[2:]) == ((side, side) if side else (7, 6))


def adam_of(model, decoupled):
    return Adam(decay_groups(model, 0.1), torch.tensor(1e-2), decoupled=decoupled)


def muon_of(model):
    rate = [torch.tensor(value) for value in (0.1, 0.05, 0.02)]
    groups = [
        {"params": [model[0].weight, model[1].weight], "lr": rate[0], "momentum": 0.6, "muon": True},
        {"params": [model[0].bias, model[1].bias], "lr": rate[1], "weight_decay": 0.1},
        {"params": [model[3].weight, model[3].bias], "lr": rate[2]},
    ]
    return MuonSgd(groups, momentum=0.85)


@pytest.mark.parametrize(
    ("make", "steps", "most"),  # Muon multiplies matrices in bf16 here, in fp32 there
    [
        (partial(adam_of, decoupled=False), 20, (1e-5, 1e-5)),
        (partial(adam_of, decoupled=True), 20, (1e-5, 1e-5)),
        (muon_of, 6, (0.02, 0.05)),
    ],
    ids=["Adam", "AdamW", "Muon"],
)
def test_optimizers_take_the_same_steps(request, make, steps, most):
    def trained():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.Flatten(), nn.Linear(12, 10))
        optimizer = make(model.to(memory_format=LAST))
        for _ in range(steps):
            model.zero_grad()
            model(torch.randn(4, 3, 5, 5)).square().sum().backward()
            optimizer.step()
        return list(model.parameters())

    expected = trained()
    request.getfixturevalue("kernels_on_cpu")
    for own, other in zip(trained(), expected, strict=True):
        assert error(own, other) < most[own.ndim != 4]


class Rounded(torch.autograd.Function):
    """x as bf16 holds it; gradients as if it had not been rounded."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().double()

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize(("height", "width", "rows"), [(14, 17, 5), pytest.param(28, 28, 66, marks=pytest.mark.slow)])
def test_loss_and_every_gradient_of_lenet(device, height, width, rows):
    """Results of layers are rounded in double precision, too; weights are numbers that bf16 holds."""
    torch.manual_seed(0)
    model = network(height, width, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    model.to(device, memory_format=LAST)
    exact = copy.deepcopy(model).double()
    images, labels = torch.randn(rows, 1, height, width, device=device), torch.randint(0, 10, (rows,), device=device)
    with torch.autocast(device.type, torch.bfloat16):
        loss = lenet.cross_entropy(model, images, labels)
    x = images.double()
    for number, layer in enumerate(exact):
        x = Rounded.apply(layer(x)) if number in (2, 5, 8) else layer(x)
    expected = F.cross_entropy(x, labels)
    assert type(loss.grad_fn).__name__ == "_OpBackward" and loss.item() == pytest.approx(expected.item(), rel=1e-4)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        predicted = lenet.logits(model.eval(), images)
    torch.testing.assert_close(F.cross_entropy(predicted, labels), loss.detach())
    (loss * 3).backward()
    (expected * 3).backward()
    for (name, own), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert own.grad.dtype == torch.float32 and own.grad.stride() == own.stride()
        assert error(own.grad, other.grad) < 0.01, name


def test_other_networks_than_lenet_are_left_alone():
    layers = list(network(28, 28, 10))
    assert lenet.shape_of(layers, 28, 28).features == 1600
    assert lenet.shape_of(layers, 20, 20) is None and lenet.shape_of(layers[:-1], 28, 28) is None
    layers[3] = nn.Conv2d(32, 64, 3, padding=1)
    assert lenet.shape_of(layers, 28, 28) is None


# Inside of any module ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("activation", "summed"), [("none", False), ("none", True), ("relu", False), ("relu", True), ("gelu", False)]
)
def test_norm_sum_and_activation(kernels_on_cpu, activation, dtype, summed):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(64)
    nn.init.uniform_(norm.weight, -1, 1)
    nn.init.uniform_(norm.bias, -1, 1)
    exact = copy.deepcopy(norm).double()
    own = [torch.randn(3, 64, 7, 9).to(dtype).to(memory_format=LAST).requires_grad_() for _ in range(1 + summed)]
    theirs = [x.detach().double().requires_grad_() for x in own]
    out = module_patches.NormThen(norm, activation)(own[0], own[1] if summed else None)
    expected = ACTIVATIONS[activation](exact(theirs[0]) + (theirs[1] if summed else 0))
    most = 1e-5 if dtype == torch.float32 else 1e-2
    assert type(out.grad_fn).__name__ == "_OpBackward" and error(out, expected) < most
    slope = torch.randn_like(expected)
    (out * slope.to(dtype)).sum().backward()
    (expected * slope.to(dtype).double()).sum().backward()
    for ours, other in zip([*own, *norm.parameters()], [*theirs, *exact.parameters()], strict=True):
        assert error(ours.grad, other.grad) < most * 4
    assert all(error(*pair) < most for pair in zip(norm.buffers(), exact.buffers(), strict=True))


@pytest.mark.parametrize(("channels", "blocks"), [(32, 37), (1024, 18)])
def test_sums_of_many_blocks(kernels_on_cpu, monkeypatch, channels, blocks):
    monkeypatch.setattr(batch_norm, "blocks_over", lambda *given: blocks)
    norm = nn.BatchNorm2d(channels)
    exact, x = copy.deepcopy(norm).double(), seeded(2, channels, 3, 5).requires_grad_()
    theirs, then = x.detach().double().requires_grad_(), module_patches.NormThen(norm, "relu")
    for _ in range(2):  # from zero again
        out, expected = then(x), F.relu(exact(theirs))
        (out * x.detach().cos()).sum().backward()
        (expected * theirs.detach().cos()).sum().backward()
    pairs = [(out, expected), (x.grad, theirs.grad), (norm.weight.grad, exact.weight.grad)]
    assert all(error(own, other) < 1e-5 for own, other in [*pairs, (norm.running_var, exact.running_var)])


@pytest.mark.parametrize("name", ["resnet", "unet"])
def test_any_module_runs_by_kernels_inside(kernels_on_cpu, name):
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
    assert len(found.norms) == {"resnet": 6, "unet": 4}[name]
    assert set(found.left) == ({"deep.1", "deep.4"} if name == "unet" else set())
    assert not any("forward" in vars(module) for module in model.modules()), "the model is as it was"
    expected = loss(exact, images[:4].double(), labels[:4])
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    expected.backward()
    for (key, own), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        none = other.grad.abs().max() < 1e-15  # of a bias before a normalisation
        assert own.grad.abs().max() < 1e-7 if none else error(own.grad, other.grad) < 1e-3, key
    assert all(error(*pair) < 1e-5 for pair in zip(model.buffers(), exact.buffers(), strict=True))


def test_module_whose_code_cannot_be_read_is_left_and_named():
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


def test_lines_name_whose_layers_run_and_why(monkeypatch):
    gpu, built = torch.device("cuda", 0), []
    bf16 = Precision("bf16", gpu)
    for precision, message in (("fp32", "in fp32 on cpu"), ("fp16", "in fp16 on cuda")):
        chosen = Precision(precision, torch.device("cpu") if precision == "fp32" else gpu)
        for prepare in (partial(lenet.prepare, size=(28, 28)), module_patches.prepare):
            assert f"layers: torch's own, {message}" in prepare(network(28, 28, 10), chosen)
    monkeypatch.setattr(runtime, "unavailable", lambda: "OSError: no libnvrtc")
    message = lenet.prepare(network(28, 28, 10), bf16, (28, 28))
    assert message == "layers: torch's own, for kernels cannot be compiled here (OSError: no libnvrtc)"
    monkeypatch.setattr(runtime, "unavailable", lambda: None)
    monkeypatch.setattr(runtime, "build", lambda text, device: built.append(text))
    message, found = module_patches.prepare(nn.Sequential(nn.Flatten()), bf16)
    assert message.startswith("layers: torch's own: no batch normalisation is inside") and found is None
    norms = [layer for n in (32, 64) for layer in (nn.Conv2d(1, n, 5), nn.BatchNorm2d(n), nn.ReLU())]
    message, _ = module_patches.prepare(nn.Sequential(*norms, nn.Sequential(nn.BatchNorm2d(20))), bf16)
    assert message == (
        "layers: 2 batch normalisations with what follows them run in kernels of this library; "
        "2 products use bf16 copies of their weights; left to torch: 6.0 (of a kind that no kernel fits)"
    )
    assert len(built) == 2, "each width's text"


def test_never_inside_of_torch_compile(monkeypatch):
    """torch 2.11 traces autograd functions that return ``y.contiguous()`` into steps that leave layers untrained."""
    monkeypatch.setattr(runtime, "unavailable", lambda: None)

    def traced(x):
        return x + 1 if runtime.usable(torch.device("cuda")) else x

    assert traced(torch.zeros(1)).item() == 1
    assert torch.compile(traced, backend="eager")(torch.zeros(1)).item() == 0
