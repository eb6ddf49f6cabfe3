"""Our kernels, run on the CPU thread by thread, against torch's layers in double precision."""

import copy
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import cuda_on_cpu  # noqa: E402
from seatrial.train import fused, module_patches  # noqa: E402
from seatrial.train.data import augment, images  # noqa: E402
from seatrial.train.distributed import Ranks  # noqa: E402
from seatrial.train.kernels import (  # noqa: E402
    classifier_head,
    filter_gradients,
    normact,
    normpool,
    nvrtc,
    single_channel_conv,
    sums,
)
from seatrial.train.optim.optimizer import Adam, decay_groups  # noqa: E402
from seatrial.train.precision import Precision  # noqa: E402

pytestmark = pytest.mark.torch


def classic():
    """The layers of mnist, for images of 12×13."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10),
    )  # fmt: skip


def deep():
    """The layers of mnist-deep, two of four convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Dropout(0.0), nn.Linear(40, 10),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("network", "dtype", "most"),
    [
        (classic, torch.float32, 1e-5),
        (deep, torch.bfloat16, 3e-2),
        pytest.param(classic, torch.bfloat16, 3e-2, marks=pytest.mark.slow),
        pytest.param(deep, torch.float32, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_loss_and_every_gradient(kernels_on_cpu, network, dtype, most):
    torch.manual_seed(0)
    model = network().to(memory_format=torch.channels_last)
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, -1, 1)
            nn.init.uniform_(layer.bias, -1, 1)
    exact = copy.deepcopy(model).double()
    images, labels = torch.randn(5, 1, 12, 13), torch.randint(0, 10, (5,))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = fused.run(list(model), images, labels, dtype)
    expected = F.cross_entropy(exact(images.double()), labels)
    assert loss.item() == pytest.approx(expected.item(), rel=most)
    (loss * 3).backward()
    (expected * 3).backward()
    for (name, own), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert own.grad.dtype == torch.float32
        assert error(own.grad, other.grad) < most * 4, name
    for (name, own), other in zip(model.named_buffers(), exact.buffers(), strict=True):
        assert error(own, other) < most, name


@pytest.mark.parametrize(("inputs", "outputs", "size", "padding", "pixels"), [(32, 64, 3, 0, 7), (32, 64, 3, 1, 24)])
def test_gradient_of_filters_is_exact_to_rounding(kernels_on_cpu, inputs, outputs, size, padding, pixels):
    x = torch.randn(3, inputs, pixels, pixels + 1).bfloat16().to(memory_format=torch.channels_last)
    out = pixels + 2 * padding - size + 1
    grad = torch.randn(3, outputs, out, out + 1).bfloat16().to(memory_format=torch.channels_last)
    weight = torch.zeros(outputs, inputs, size, size, dtype=torch.double, requires_grad=True)
    F.conv2d(x.double(), weight, padding=padding).backward(grad.double())
    assert filter_gradients.fits(nn.Conv2d(inputs, outputs, size, padding=padding), x)
    assert error(filter_gradients.filter_gradient(x, grad, size, padding), weight.grad) < 1e-6


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


def test_affine_draws_and_moves_alike(request):
    pixels = torch.rand(6, 2, 9, 11) * 255
    amounts = {"degrees": 10.0, "shift": 0.1, "scale": 0.2, "shear_degrees": 5.0}
    torch.manual_seed(1)
    expected = augment.affine(pixels, **amounts)
    request.getfixturevalue("kernels_on_cpu")
    torch.manual_seed(1)
    torch.testing.assert_close(augment.affine(pixels, **amounts), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_crops_and_flips_are_the_same_in_one_kernel(request, dtype, layout):
    pixels = (torch.rand(9, 3, 7, 5) * 255).to(dtype).contiguous(memory_format=layout)
    moves = [augment.flip, lambda x: augment.crop(x, 2), lambda x: augment.crop(x, 2, reflect=False)]

    def moved():
        torch.manual_seed(1)
        return [move(pixels) for move in moves]

    expected = moved()
    request.getfixturevalue("kernels_on_cpu")
    for own, other in zip(moved(), expected, strict=True):
        assert torch.equal(own, other) and own.stride() == other.stride()
    assert not torch.equal(expected[0], pixels)


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


@pytest.mark.parametrize("network", [classic, deep])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_everything_that_runs_was_prepared(kernels_on_cpu, monkeypatch, network, dtype):
    model, used = network().to(memory_format=torch.channels_last), set()

    def recorded(source, name, *arguments, **options):
        used.add(source)
        cuda_on_cpu.launch(source, name, *arguments, **options)

    for module in (filter_gradients, single_channel_conv, classifier_head, normpool, sums):
        monkeypatch.setattr(module, "launch", recorded)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = fused.run(list(model), torch.randn(2, 1, 12, 13), torch.tensor([1, 2]), dtype)
    loss.backward()
    assert len(used) > 5 and used <= set(fused.sources(model, dtype))


def test_says_whose_layers_run(monkeypatch):
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert fused.prepare(classic(), Precision("fp32", cpu)) == "layers: torch's own, in fp32 on cpu"
    assert fused.prepare(classic(), Precision("fp16", gpu)) == "layers: torch's own, in fp16 on cuda"
    monkeypatch.setattr(fused, "unavailable", lambda: "OSError: no libnvrtc")
    message = fused.prepare(classic(), Precision("bf16", gpu))
    assert message == "layers: torch's own, for kernels cannot be compiled here (OSError: no libnvrtc)"


def test_another_network_is_told(monkeypatch):
    """A module with a forward of its own: what is taken inside, and what is left."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = classic()

        def forward(self, x):
            return self.features(x)

    monkeypatch.setattr(fused, "unavailable", lambda: None)
    message = fused.prepare(Net(), Precision("bf16", torch.device("cuda", 0)))
    assert message.startswith("layers: torch's own: no normalisation is inside")
    built = []
    monkeypatch.setattr(fused, "build", lambda text, device: built.append(text))
    net = Net()
    net.features, net.odd = deep(), nn.BatchNorm2d(20)
    message = fused.prepare(net, Precision("bf16", torch.device("cuda", 0)))
    assert message == (
        "layers: 2 batch normalisations with what follows them run in kernels of this library; "
        "left to torch: odd (of a kind that no kernel fits)"
    )
    assert len(built) == 2, "each width's text"


def test_nested_layers_are_those_of_the_flat_network(kernels_on_cpu):
    torch.manual_seed(0)
    layers = list(classic())
    hooked = nn.Sequential(nn.Linear(40, 10))
    hooked.register_forward_hook(lambda *_: None)
    nested = nn.Sequential(nn.Sequential(nn.Sequential(*layers[:3]), *layers[3:6]), nn.Sequential(*layers[6:]))
    assert fused.flat(nested) == layers
    assert fused.flat(nn.Sequential(hooked)) == [hooked], "its hook would not run"
    assert fused.sources(nested, torch.bfloat16) == fused.sources(nn.Sequential(*layers), torch.bfloat16)
    images_, labels = torch.randn(4, 1, 12, 13), torch.tensor([1, 2, 3, 4])
    loss = fused.run(fused.flat(nested), images_, labels, torch.float32)
    assert loss.item() == pytest.approx(F.cross_entropy(nested(images_), labels).item(), rel=1e-5)


def test_a_cpu_runs_torchs_layers():
    """No kernel is tried; the loss is torch's."""
    torch.manual_seed(0)
    model, images_, labels = classic(), torch.randn(4, 1, 12, 13), torch.tensor([1, 2, 3, 4])
    assert torch.equal(fused.cross_entropy(model, images_, labels), F.cross_entropy(model(images_), labels))


def test_never_inside_of_torch_compile(monkeypatch):
    """torch 2.11 traces autograd functions that return ``y.contiguous()`` into steps that leave layers untrained."""
    monkeypatch.setattr(nvrtc, "unavailable", lambda: None)
    gpu = torch.device("cuda")

    def asked(x):
        return x + 1 if nvrtc.usable(gpu) else x

    assert asked(torch.zeros(1)).item() == 1
    assert torch.compile(asked, backend="eager")(torch.zeros(1)).item() == 0


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
    x, beside = (torch.randn(3, 64, 7, 9).to(dtype).to(memory_format=torch.channels_last) for _ in range(2))
    own = [x.clone().requires_grad_(), beside.clone().requires_grad_()]
    theirs = [x.double().requires_grad_(), beside.double().requires_grad_()]
    out = module_patches.NormThen(norm, activation)(own[0], own[1] if summed else None)
    expected = exact(theirs[0]) + (theirs[1] if summed else 0)
    expected = {"none": lambda z: z, "relu": F.relu, "gelu": F.gelu}[activation](expected)
    most = 1e-5 if dtype == torch.float32 else 1e-2
    assert type(out.grad_fn).__name__ == "NormActBackward"
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
    monkeypatch.setattr(normact, "blocks_over", lambda *given: blocks)
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


# Layer normalisation inside of any module ---------------------------------------------------------------------------


class Attentive(nn.Module):
    """Norms before what multiplies; the last one's result is summed as well."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.qkv = nn.LayerNorm(width), nn.Linear(width, width)
        self.second, self.wide = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width)),
        )
        self.third, self.last, self.scale = nn.LayerNorm(width), nn.Linear(width, 3), 2.0

    def forward(self, x):
        x = x + self.qkv(self.first(x))
        x = x + self.wide(self.second(x))
        x = self.third(x)
        return self.last(x) * self.scale + x.mean()


def test_layer_norms_write_bf16_only_for_products(kernels_on_cpu):
    torch.manual_seed(0)
    model, x = nn.Sequential(Attentive(), nn.Linear(3, 4)), torch.randn(5, 7, 64)
    found = module_patches.ModuleKernels(model)
    found.copy_weights()
    assert set(found.rows._narrow) == {model[0].first, model[0].second}
    kinds = []
    model[0].qkv.register_forward_hook(lambda layer, given, out: kinds.append(given[0].dtype))
    exact = copy.deepcopy(model).double()

    def gradients(running):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), running():
            loss = model(x).square().mean()
            loss.backward()
        return loss, [parameter.grad.clone() for parameter in model.parameters()]

    loss, own = gradients(found.running)
    plainly, theirs = gradients(nullcontext)
    assert kinds == [torch.bfloat16, torch.float32]
    expected = exact(x.double()).square().mean()
    expected.backward()
    assert abs(loss - expected) < abs(plainly - expected) + 1e-2 * expected
    for ours, other, parameter in zip(own, theirs, exact.parameters(), strict=True):
        assert error(ours, parameter.grad) < error(other, parameter.grad) * 1.2 + 1e-3
    model[0].scale = 3.0
    kinds.clear()
    gradients(found.running)
    assert kinds == [torch.float32], "other settings, perhaps other readers"
