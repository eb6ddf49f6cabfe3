"""cifar10: 94 % test accuracy on CIFAR-10 as fast as one GPU can, counted from the start of the process.

    python -m seatrial.recipes.cifar10 --data DIR --models DIR

The method is public: a small network of six convolutions behind a fixed whitening of 2×2 patches; filters that start as
the identity; orthogonalised updates of them; flips that alternate between epochs; crops, smaller ones in the first
epochs; label smoothing; predictions averaged over flips and shifts. Nothing is compiled: the step is captured in a CUDA
graph.

Sources: K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv:2404.00498 (network, whitening, flips,
views at test time); https://kellerjordan.github.io/posts/muon (updates); https://github.com/KellerJordan/cifar10-airbench,
airbench94_muon.py (the numbers below).
Shapes: N examples, B rows, C channels, H and W pixels.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from seatrial.train import early_start
from seatrial.train.data.cifar10 import read_records
from seatrial.train.options import data_folder

if __name__ == "__main__":
    early_start.begin((read_records, data_folder(sys.argv[1:])))

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train import options
from seatrial.train.data.cifar10 import CLASSES, image_sets
from seatrial.train.data.crops import AlternatingCrops
from seatrial.train.data.images import ImageSet, TestImages
from seatrial.train.distributed import Ranks, ranks
from seatrial.train.errors import EXIT_TERMINATED, InputError
from seatrial.train.evaluation import evaluate
from seatrial.train.kernels import cifar10 as kernels
from seatrial.train.kernels import runtime
from seatrial.train.kernels.batch_norm import pooled_modules, pooled_norm_act
from seatrial.train.kernels.multi_tensor import muon_module, size_of
from seatrial.train.kernels.ops import FORMATS, KernelModule, module
from seatrial.train.loop import Settings, fit, step_options
from seatrial.train.optim.muon import MuonSgd
from seatrial.train.optim.schedules import Schedule
from seatrial.train.precision import Precision, choose_precision
from seatrial.train.progress import TrainingOutcome
from seatrial.train.saving.examples import Normalisation, save_images_model
from seatrial.train.saving.rng import seed_all
from seatrial.train.step import Step
from seatrial.train.trackers import Trackers, open_trackers

WIDTHS = (64, 256, 256)
CROP_PIXELS = 2
WHITENING_EXAMPLES, WHITENING_FLOOR = 5000, 5e-4


@dataclass(frozen=True)
class Method:
    """Settings of the training, besides batch, epochs and the filters' rate.

    Attributes:
        momentum, filter_momentum: of biases and head, and of the filters.
        bias_rate, head_rate: learning rates for gradients of a sum.
        decay: the share of themselves that biases and head lose a step for each row of the batch.
        smoothing: share of a label that goes to all classes alike.
        whitening_epochs: after them the bias of the whitening layer stays as it is.
        small_side, small_share: in the first epochs, such a share of all, the crops have so many pixels a side: they
            take three quarters of the time. 26 pixels are the fewest that leave 3×3 for the last pool.
        first_block_share: of the epochs, in which the first block's filters and biases learn; then they stay as they
            are.
    """

    momentum: float = 0.85
    filter_momentum: float = 0.6
    bias_rate: float = 0.053
    head_rate: float = 0.67
    decay: float = 2e-6
    smoothing: float = 0.15
    whitening_epochs: int = 1
    small_side: int = 26
    small_share: float = 4 / 9
    first_block_share: float = 8 / 9

    def sides(self, epochs: int) -> tuple[int, ...]:
        """Return the pixels a side of the crops, in each of the first epochs; whole images follow."""
        return (self.small_side,) * round(self.small_share * epochs)

    def frozen_after(self, model: Network, epochs: int) -> list[tuple[Tensor, int]]:
        """Return what stays as it is after how many epochs: the whitening layer's bias, and all of the first block."""
        assert model.whitening.bias is not None
        block = [parameter for parameter in model.blocks[0].parameters() if parameter.requires_grad]
        ends = round(self.first_block_share * epochs)
        return [(model.whitening.bias, self.whitening_epochs), *((parameter, ends) for parameter in block)]


METHOD = Method()
FILTER_RATE = 0.24
#: Percentage of the test images that are also evaluated shifted, and the test's batch size.
UNCERTAIN_PERCENT, TEST_BATCH = 25, 5000
#: Losses of an epoch that trackers get.
LOGGED_STEPS = 5


class Block(nn.Module):
    """Convolution, 2×2 max-pool, batch norm, GELU, convolution, batch norm, GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = filters(inputs, outputs), filters(outputs, outputs)
        self.first_norm, self.second_norm = norm(outputs), norm(outputs)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Compute [B, inputs, H, W] → [B, outputs, H/2, W/2]."""
        x_BCHW = pooled_norm_act(kernels.convolved(x_BCHW, self.first), self.first_norm, "gelu", pools=True)
        return pooled_norm_act(self.second(x_BCHW), self.second_norm, "gelu")


class Network(nn.Module):
    """32×32 images → logits of 10 classes; 1.97 million parameters."""

    def __init__(self, classes: int = 10, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad = False
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in zip((24, *widths), widths, strict=False)))
        self.head = nn.Linear(widths[-1], classes, bias=False)
        with torch.no_grad():  # to a deviation of 1, from torch's 0.036: 0.05 points of accuracy (docs/benchmarks.md)
            self.head.weight /= self.head.weight.std()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return logits [B, classes]."""
        features_BC = F.max_pool2d(self.features(x_BCHW), 3).flatten(1)
        logits: Tensor = self.head(features_BC) / features_BC.shape[1]
        return logits

    def features(self, x_BCHW: Tensor) -> Tensor:
        """Return the last pool's input, [B, C, 3, 3]."""
        features_BCHW: Tensor = self.blocks(kernels.whitened_gelu(x_BCHW, self.whitening))
        return features_BCHW

    def mean_loss(self, x_BCHW: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
        """Return the mean cross-entropy with smoothed labels."""
        features_BCHW = self.features(x_BCHW)
        if kernels.takes_head(features_BCHW, self.head):
            numbers = {"times": 1 / features_BCHW.shape[1], "smoothing": smoothing}
            return kernels.pooled_cross_entropy(features_BCHW, self.head.weight, labels_B, **numbers)
        logits_BK = self.head(F.max_pool2d(features_BCHW, 3).flatten(1)) / features_BCHW.shape[1]
        return F.cross_entropy(logits_BK.float(), labels_B, label_smoothing=smoothing)

    @torch.no_grad()
    def whiten(self, images_NCHW: Tensor) -> None:
        """Set the first layer to the eigenvectors of the covariance of 2×2 patches, at unit variance."""
        patches = images_NCHW.double().unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
        values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).cpu())
        scaled = (vectors / (values + WHITENING_FLOOR).sqrt()).T.flip(0).reshape(12, 3, 2, 2)
        self.whitening.weight.copy_(torch.cat([scaled, -scaled]))
        assert self.whitening.bias is not None
        self.whitening.bias.zero_()


def filters(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a 3×3 convolution whose first filters pass their input through."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight[:inputs])
    return convolution


def norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm that learns biases only."""
    layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    layer.weight.requires_grad = False
    return layer


class Summed(torch.autograd.Function):
    """Return a mean with the gradient of the sum: in fp16 the gradient of a mean would underflow."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, count: int) -> Tensor:
        ctx.count = count
        return mean.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.count, None


def loss(batch: int, smoothing: float, model: nn.Module, images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean cross-entropy with smoothed labels; its gradient is a sum's over ``batch`` rows."""
    if isinstance(model, Network):
        mean = model.mean_loss(images_BCHW, labels_B, smoothing)
    else:
        mean = F.cross_entropy(model(images_BCHW).float(), labels_B, label_smoothing=smoothing)
    return cast(Tensor, Summed.apply(mean, batch))  # type: ignore[no-untyped-call]


def views(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """Average logits over the image and its mirror image.

    For the rows of which these are the least certain, also over two diagonal shifts by a pixel, each also mirrored.
    """
    kind = images_BCHW.device.type
    if torch.is_autocast_enabled(kind):
        images_BCHW = images_BCHW.to(torch.get_autocast_dtype(kind))

    def mirrored(x_BCHW: Tensor) -> Tensor:
        x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
        logits: Tensor = model(x_BCHW) + model(x_BCHW.flip(3))
        return logits

    logits_BK = mirrored(images_BCHW).float() * 4
    best_B2 = logits_BK.topk(2, 1).values
    count = -(-len(images_BCHW) * UNCERTAIN_PERCENT // 100)
    rows_U = (best_B2[:, 0] - best_B2[:, 1]).topk(count, largest=False).indices
    padded = F.pad(images_BCHW[rows_U], (1, 1, 1, 1), mode="reflect")
    shifted_UK = mirrored(padded[:, :, :32, :32]) + mirrored(padded[:, :, 2:, 2:])
    logits_BK[rows_U] = logits_BK[rows_U] / 2 + shifted_UK
    return logits_BK


def modules(widths: Sequence[int], classes: int, dtype: torch.dtype) -> list[KernelModule]:
    """Return the kernels that a training runs by, the longest texts first, to compile them all at once."""
    model = Network(classes, widths)
    filters, inputs, size, _ = model.whitening.weight.shape
    norms, tables = zip(*(pooled_modules(dtype, width, "gelu") for width in set(widths)), strict=True)
    ends = [kernels.head_module(dtype, widths[-1], classes), kernels.whitening_module(dtype, inputs, filters, size)]
    sizes = tuple(size_of(parameter) for parameter in model.blocks.parameters() if parameter.ndim == 4)
    learning = sizes[len([each for each in model.blocks[0].parameters() if each.ndim == 4]) :]  # in the last epochs
    return [
        *norms,
        *ends,
        *tables,
        muon_module(sizes),
        muon_module(learning),
        module("crops.cu", dtype),
        module("sums.cu"),
    ]


def optimizer_of(model: Network, batch: int, filter_rate: float, method: Method = METHOD) -> MuonSgd:
    """Return the optimizer of whitening bias, other biases, head, and filters, each with its rate."""
    biases = [parameter for name, parameter in model.blocks.named_parameters() if name.endswith("norm.bias")]
    weights = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 4]
    device, decay = model.head.weight.device, method.decay * batch
    groups = [
        {"params": [model.whitening.bias], "lr": method.bias_rate, "weight_decay": decay / method.bias_rate},
        {"params": biases, "lr": method.bias_rate, "weight_decay": decay / method.bias_rate},
        {"params": [model.head.weight], "lr": method.head_rate, "weight_decay": decay / method.head_rate},
        {"params": weights, "lr": filter_rate, "momentum": method.filter_momentum, "muon": True},
    ]
    for group in groups:
        group["lr"] = torch.tensor(group["lr"], device=device)
    return MuonSgd(groups, momentum=method.momentum)


def schedules(epochs: int, whitening_epochs: int = METHOD.whitening_epochs) -> list[Schedule]:
    """Return linear schedules down to zero: over the first epochs for the whitening bias, over all for the rest."""

    def falling(share: float, step: int, steps: int) -> float:
        return max(0.0, 1 - step / (share * steps)) if share else 0.0

    whole = partial(falling, 1.0)
    return [partial(falling, min(1.0, whitening_epochs / epochs)), whole, whole, whole]


def precision_of(name: str, device: torch.device) -> Precision:
    """Return the precision of a name; fp16 without a scaled loss, since a sum is differentiated."""
    return replace(choose_precision(name, device, preferred="fp16"), scaled=False)


def train(
    data: Sequence[ImageSet], arguments: argparse.Namespace, group: Ranks, seed: int, trackers: Trackers
) -> tuple[TrainingOutcome, Network]:
    """Run one training from one seed."""
    train_set, test_set = data
    precision = precision_of(arguments.precision, group.device)
    precision.apply()
    seed_all(seed)
    normalise = Normalisation.of(train_set.images_NCHW).to(group.device)
    model = Network(widths=arguments.widths).to(group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    sides = METHOD.sides(arguments.epochs)
    source = AlternatingCrops(
        train_set, normalise, arguments.batch, group, seed, pixels=CROP_PIXELS, sides=sides, dtype=precision.dtype
    )
    model.whiten(normalise(train_set.images_NCHW[:WHITENING_EXAMPLES].float()))
    step = Step(
        model,
        partial(loss, arguments.batch, METHOD.smoothing),
        optimizer_of(model, arguments.batch, arguments.learning_rate),
        source,
        schedule=schedules(arguments.epochs),
        **step_options(arguments, group, precision),
        frozen_after=METHOD.frozen_after(model, arguments.epochs),
    )
    tests = TestImages(test_set, normalise, group, TEST_BATCH)
    # A training of less than a second: it is tested and saved at its end (or where SIGTERM ends it).
    every = {"test_every": arguments.epochs, "save_every": arguments.epochs, "log_steps": LOGGED_STEPS}
    settings = replace(Settings.from_arguments(arguments), seed=seed, **every)

    def test() -> dict[str, float]:
        return evaluate(model, tests, group, precision, views)

    if group.device.type == "cuda":
        test()  # what its first time loads is not the loop's
        # cuDNN now benchmarks for the steps' shapes. The test takes as long without, and keeps the chosen algorithms.
        torch.backends.cudnn.benchmark = True
    return fit(step, test, trackers, settings), model


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial.recipes.cifar10", description="Train CIFAR-10 to 94 %, fast.")
    options.add_folder_options(parser)
    options.add_training_options(parser, epochs=9, batch=1536, learning_rate=FILTER_RATE)
    parser.add_argument("--runs", type=options.positive, default=1, help="train from N seeds and print the mean")
    parser.add_argument("--widths", type=options.positive, nargs=3, default=WIDTHS, help="channels of the three blocks")
    arguments = options.parse(parser, argv)
    if arguments.runs > 1 and arguments.resume:
        raise InputError("--runs trains from scratch with several seeds: it cannot be combined with --resume")
    accuracies, seconds = [], []
    with ranks() as group, closing(open_trackers(arguments.track, arguments.models, first=group.first)) as trackers:
        precision = precision_of(arguments.precision, group.device)
        if runtime.usable(group.device) and precision.dtype in FORMATS:
            for each in modules(arguments.widths, len(CLASSES), precision.dtype):
                runtime.build(each.text, group.device.index or 0)  # while the data are read
        sets = image_sets(early_start.read_ahead(read_records, arguments.data))
        data = tuple(each.to(group.device) for each in sets)
        del sets  # 184 MB of the host's memory, where there is a GPU
        for run in range(arguments.runs):
            outcome, model = train(data, arguments, group, arguments.seed + run, trackers)
            if outcome.terminated:
                return EXIT_TERMINATED
            accuracies.append(outcome.metrics["accuracy"])
            seconds.append(outcome.loop_s)
            if group.first:
                seconds_old = time.time() - early_start.process_start_s()
                age = f", {seconds_old:.1f} s after the process began" if run == 0 else ""
                print(f"run {run + 1}: {accuracies[-1]:.2%} in a loop of {seconds[-1]:.3f} s{age}", flush=True)
        if group.first:
            if arguments.runs > 1:
                spread = statistics.stdev(accuracies)
                print(f"mean accuracy {statistics.fmean(accuracies):.3%} ± {spread:.3%} (n={arguments.runs})", end="")
                print(f", median loop {statistics.median(seconds):.3f} s", flush=True)
            images, normalise = data[1].images_NCHW.cpu(), Normalisation.of(data[0].images_NCHW)
            save_images_model("cifar10", arguments.models / "cifar10", model, images, normalise, CLASSES)
    return 0


if __name__ == "__main__":
    options.run(main)
