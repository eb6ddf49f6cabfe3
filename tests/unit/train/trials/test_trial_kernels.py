"""The kernels that train several trials at once, on the CPU, against torch's own layers for each trial."""

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from seatrial.recipes import mnist  # noqa: E402
from seatrial.train.data.images import ImageSet, Normalisation  # noqa: E402
from seatrial.train.kernels import trial_adam  # noqa: E402
from seatrial.train.precision import Precision  # noqa: E402
from seatrial.train.trials import stacked  # noqa: E402
from seatrial.train.trials.data import TrialImages  # noqa: E402
from seatrial.train.trials.network import TrialNetworks  # noqa: E402
from seatrial.train.trials.optimizer import TrialAdam  # noqa: E402
from seatrial.train.trials.settings import Trial  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
TRIALS = [Trial(0.001, 0.0, 0), Trial(0.01, 0.1, 7), Trial(0.003, 0.0, 7)]


def networks(pixels, classes=10, trials=TRIALS):
    return TrialNetworks(partial(mnist.network, pixels, pixels, classes), trials, CPU)


def rounded(x):
    """x as bf16 holds it; gradients as if it had not been rounded."""
    return x + (x.detach().bfloat16().double() - x.detach())


def logits(lone, images):
    """torch's layers in double precision, with activations rounded where the kernels round them."""
    x = rounded(F.max_pool2d(F.relu(lone[0](images)), 2))
    x = rounded(F.conv2d(x, lone[3].weight)) + lone[3].bias[:, None, None]
    x = rounded(F.max_pool2d(F.relu(x), 2)).flatten(1)
    return lone[9](rounded(F.relu(lone[7](x))))


def close(own, reference, share):
    """Whether two gradients are equal up to a share of the reference's norm, in each trial."""
    for trial, (one, other) in enumerate(zip(own.double(), reference.double(), strict=True)):
        assert (one - other).norm() <= share * other.norm() + 1e-12, (trial, one, other)


# 12 pixels: one place is left; 17: odd edges that no pool sees, several tiles; rows that two images do not divide.
@pytest.mark.parametrize(("pixels", "rows"), [(12, 3), (17, 5)])
def test_losses_and_gradients_of_every_trial_are_torchs(kernels_on_cpu, pixels, rows):
    model = networks(pixels)
    with torch.no_grad():  # numbers that bf16 holds: what is left is the rounding of activations
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    torch.manual_seed(0)
    images = torch.randn(len(TRIALS), rows, 1, pixels, pixels)
    labels = torch.randint(0, 10, (len(TRIALS), rows))
    assert stacked.mismatch(model, images.shape[1:], 232448) is None
    own = stacked.losses(model, images, labels)
    weights = torch.tensor([1.0, 2.0, 0.5])  # every trial's own slope comes through
    gradients = torch.autograd.grad((own * weights).sum(), list(model.parameters()))
    for trial in range(len(TRIALS)):
        lone = mnist.network(pixels, pixels, 10).double()
        lone.load_state_dict(model.of(trial))
        loss = F.cross_entropy(logits(lone, images[trial].double()), labels[trial])
        assert abs(own[trial].item() - loss.item()) < 1e-3 * loss.item()
        expected = torch.autograd.grad(loss * weights[trial], list(lone.parameters()))
        for mine, theirs in zip(gradients, expected, strict=True):
            assert (mine[trial] - theirs).norm() <= 0.01 * theirs.norm(), (trial, theirs.shape)


def test_logits_of_shared_images(kernels_on_cpu):
    model = networks(12)
    images = torch.randn(4, 1, 12, 12)
    with torch.no_grad():
        own, reference = stacked.logits(model, images), model(images)
    assert own.shape == reference.shape == (3, 4, 10)
    close(own, reference, 0.03)


def test_every_trial_has_its_rate_and_decay(kernels_on_cpu):
    one, other = networks(12), networks(12)
    optimizers = [TrialAdam(each, TRIALS, CPU) for each in (one, other)]
    for step in range(4):
        for number, (first, second) in enumerate(zip(one.parameters(), other.parameters(), strict=True)):
            torch.manual_seed(10 * step + number)
            first.grad = torch.randn_like(first)
            second.grad = first.grad.clone()
        optimizers[0].step()
        kinds = optimizers[1]._tensors()
        optimizers[1]._done.add_(1)
        rates = optimizers[1].param_groups[0]["lr"]
        trial_adam.update(kinds, optimizers[1]._done, rates, optimizers[1]._decays_T, (0.9, 0.999), 1e-8)
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(first, second, rtol=1e-5, atol=1e-7)


def test_each_trial_gets_its_own_rows(kernels_on_cpu, monkeypatch):
    from seatrial.train.trials import data

    images = torch.randint(0, 256, (20, 1, 6, 6), dtype=torch.uint8)
    data_set = ImageSet(images, torch.arange(20) % 10, 10)
    model = networks(12)
    source = TrialImages(data_set, Normalisation.of(images), 6, model, TRIALS, CPU)
    source.start(1, 0)
    for number, span in enumerate(source.spans):
        position = torch.tensor([number])
        by_kernel, labels = source.load(position, span.shape, 0, span.shape.rows)
        with monkeypatch.context() as without:
            without.setattr(data, "usable", lambda device: False)
            plain, expected = source.load(position, span.shape, 0, span.shape.rows)
        assert torch.equal(labels, expected)
        assert torch.allclose(by_kernel.images_TBCHW, plain.images_TBCHW, atol=1e-6)


def test_what_the_kernels_do_not_take():
    model = networks(28)
    assert stacked.mismatch(model, (64, 1, 28, 28), 232448) is None
    assert "bytes of shared memory" in stacked.mismatch(model, (64, 1, 28, 28), 48 * 1024)
    assert stacked.unfit(model, (64, 1, 28, 28), Precision("fp32", CPU)) == "no GPU"
    other = copy.deepcopy(model)
    other.layers[0].stride = (2, 2)
    assert "stride 1" in stacked.mismatch(other, (64, 1, 28, 28), 232448)
