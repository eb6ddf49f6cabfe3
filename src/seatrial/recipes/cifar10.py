"""cifar10: 94 % test accuracy on CIFAR-10 as fast as one GPU can, counted from the start of the process.

    python -m seatrial.recipes.cifar10 --data DIR --models DIR

The method is public: a small network of six convolutions behind a fixed whitening of 2×2 patches; filters that start as
the identity; orthogonalised updates of them; flips that alternate between epochs; crops; label smoothing; predictions
averaged over flips and shifts. Nothing is compiled: the step is captured in a CUDA graph.

Sources: K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv:2404.00498 (network, whitening, flips,
views at test time); https://kellerjordan.github.io/posts/muon (updates); https://github.com/KellerJordan/cifar10-airbench,
airbench94_muon.py (the numbers below).
Shapes: N examples, B rows, C channels, H and W pixels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train import script
from seatrial.train.data.augment import crop
from seatrial.train.data.cifar10 import CLASSES, read_cifar10
from seatrial.train.data.images import ImageSet, Normalisation, TestImages, places, shuffled
from seatrial.train.data.shards import Shape, deal
from seatrial.train.distributed import Ranks, ranks
from seatrial.train.errors import EXIT_TERMINATED, InputError
from seatrial.train.evaluate import evaluate
from seatrial.train.kernels.pool import max_pool
from seatrial.train.loop import Outcome, fit
from seatrial.train.optim.muon import MuonSgd
from seatrial.train.optim.schedules import Schedule
from seatrial.train.precision import choose_precision
from seatrial.train.saving.examples import image_examples, save_examples
from seatrial.train.saving.model_files import save_model
from seatrial.train.saving.rng import seed_all
from seatrial.train.step import Step
from seatrial.train.trackers import Trackers, open_trackers

WIDTHS = (64, 256, 256)
#: Epochs after which the bias of the whitening layer stays as it is.
WHITENING_BIAS_EPOCHS = 3
MOMENTUM, FILTER_MOMENTUM = 0.85, 0.6
#: Learning rates: filters (orthogonalised), biases, and the last layer.
FILTER_RATE, BIAS_RATE, HEAD_RATE = 0.24, 0.053, 0.67
#: Biases and head lose this share of themselves a step for each row of the batch.
DECAY = 2e-6
SMOOTHING, CROP_PIXELS = 0.2, 2
WHITENING_EXAMPLES, WHITENING_FLOOR = 5000, 5e-4


class Block(nn.Module):
    """Convolution, 2×2 max-pool, batch norm, GELU, convolution, batch norm, GELU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = filters(inputs, outputs), filters(outputs, outputs)
        self.first_norm, self.second_norm = norm(outputs), norm(outputs)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """[B, inputs, H, W] → [B, outputs, H/2, W/2]."""
        x_BCHW = F.gelu(self.first_norm(max_pool(self.first(x_BCHW))))
        return F.gelu(self.second_norm(self.second(x_BCHW)))


class Network(nn.Module):
    """32×32 images → logits of 10 classes; 1.97 million parameters."""

    def __init__(self, classes: int = 10, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        self.whitening = nn.Conv2d(3, 24, 2)
        self.whitening.weight.requires_grad = False
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in zip((24, *widths), widths, strict=False)))
        self.head = nn.Linear(widths[-1], classes, bias=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits [B, classes]."""
        x_BCHW = self.blocks(F.gelu(self.whitening(x_BCHW)))
        features_BC = F.max_pool2d(x_BCHW, 3).flatten(1)
        logits: Tensor = self.head(features_BC) / features_BC.shape[1]
        return logits

    @torch.no_grad()
    def whiten(self, images_NCHW: Tensor) -> None:
        """Set the first layer to the eigenvectors of the covariance of 2×2 patches, at unit variance."""
        patches = images_NCHW.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).float()
        values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).cpu().double())
        scaled = (vectors / (values + WHITENING_FLOOR).sqrt()).T.flip(0).reshape(12, 3, 2, 2)
        self.whitening.weight.copy_(torch.cat([scaled, -scaled]))
        assert self.whitening.bias is not None
        self.whitening.bias.zero_()


def filters(inputs: int, outputs: int) -> nn.Conv2d:
    """A 3×3 convolution whose first filters pass their input through."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight[:inputs])
    return convolution


def norm(channels: int) -> nn.BatchNorm2d:
    """Batch norm that learns biases only."""
    layer = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    layer.weight.requires_grad = False
    return layer


class AlternatingCrops:
    """Batches of an epoch whose images were flipped and cropped all at once, on the device, before it began.

    Which images are flipped is drawn once and alternates: every pair of epochs sees each image both ways.
    """

    resident = True

    def __init__(self, data: ImageSet, normalise: Normalisation, batch: int, ranks: Ranks, seed: int) -> None:
        self.spans = deal(len(data), batch, ranks.rank, ranks.world, drop_last=True)
        data, self._seed = data.to(ranks.device), seed
        normal_NCHW = normalise.to(ranks.device)(data.images_NCHW.float())
        half = torch.float16 if ranks.device.type == "cuda" else torch.float32
        self.images_NCHW = normal_NCHW.to(half).contiguous(memory_format=torch.channels_last)
        self._labels_N = data.labels_N
        generator = torch.Generator(ranks.device).manual_seed(seed)
        self._flipped_N = torch.rand(len(data), device=ranks.device, generator=generator) < 0.5
        self._places_SB = places(self.spans, batch).to(ranks.device)
        self._rows_SB = torch.zeros_like(self._places_SB)
        self._epoch_NCHW = torch.empty_like(self.images_NCHW)

    def start(self, epoch: int, first_step: int) -> None:
        """Flip, crop and shuffle. The crops are the same whenever this epoch is started: drawn from the seed."""
        flipped = self._flipped_N ^ (epoch % 2 == 0)
        images_NCHW = torch.where(flipped[:, None, None, None], self.images_NCHW.flip(3), self.images_NCHW)
        with torch.random.fork_rng([images_NCHW.device] if images_NCHW.is_cuda else []):
            torch.manual_seed(self._seed * 1_000_003 + epoch)
            self._epoch_NCHW.copy_(crop(images_NCHW, CROP_PIXELS))
        order_N = shuffled(len(self._labels_N), self._seed, epoch, images_NCHW.device)
        self._rows_SB.copy_(order_N[self._places_SB])

    def before_step(self) -> None:
        """Nothing to do on the host."""

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Rows ``first`` to ``first + count`` of step ``position``: images_BCHW, labels_B."""
        rows_B = self._rows_SB.index_select(0, position).view(-1)[first : first + count]
        return self._epoch_NCHW[rows_B], self._labels_N[rows_B]


def loss(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """Mean cross-entropy with smoothed labels."""
    return F.cross_entropy(model(images_BCHW).float(), labels_B, label_smoothing=SMOOTHING)


def views(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """Logits averaged over the image, and half as much over two diagonal shifts by a pixel, each also mirrored."""

    def mirrored(x_BCHW: Tensor) -> Tensor:
        logits: Tensor = model(x_BCHW) + model(x_BCHW.flip(3))
        return logits

    padded = F.pad(images_BCHW, (1, 1, 1, 1), mode="reflect")
    return mirrored(images_BCHW) * 2 + mirrored(padded[:, :, :32, :32]) + mirrored(padded[:, :, 2:, 2:])


def optimizer_of(model: Network, batch: int, filter_rate: float) -> MuonSgd:
    """Whitening bias, other biases, head, and filters, each with its rate. The loss is a mean: rates are for a sum."""
    biases = [parameter for name, parameter in model.blocks.named_parameters() if name.endswith("norm.bias")]
    weights = [parameter for parameter in model.blocks.parameters() if parameter.ndim == 4]
    device = model.head.weight.device
    groups = [
        {"params": [model.whitening.bias], "lr": BIAS_RATE * batch, "weight_decay": DECAY / BIAS_RATE},
        {"params": biases, "lr": BIAS_RATE * batch, "weight_decay": DECAY / BIAS_RATE},
        {"params": [model.head.weight], "lr": HEAD_RATE * batch, "weight_decay": DECAY / HEAD_RATE},
        {"params": weights, "lr": filter_rate, "momentum": FILTER_MOMENTUM, "muon": True},
    ]
    for group in groups:
        group["lr"] = torch.tensor(group["lr"], device=device)
    return MuonSgd(groups, momentum=MOMENTUM)


def schedules(epochs: int) -> list[Schedule]:
    """Down to zero linearly: over the first epochs for the whitening bias, over all of them for the rest."""

    def falling(share: float, step: int, steps: int) -> float:
        return max(0.0, 1 - step / (share * steps))

    whole = partial(falling, 1.0)
    return [partial(falling, min(1.0, WHITENING_BIAS_EPOCHS / epochs)), whole, whole, whole]


def train(
    data: tuple[ImageSet, ImageSet], arguments: argparse.Namespace, group: Ranks, seed: int, trackers: Trackers
) -> tuple[Outcome, Network]:
    """One training from one seed."""
    train_set, test_set = data
    precision = choose_precision(arguments.precision, group.device, preferred="fp16")
    precision.apply()
    seed_all(seed)
    normalise = Normalisation.of(train_set.images_NCHW)
    model = Network(widths=arguments.widths).to(group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    source = AlternatingCrops(train_set, normalise, arguments.batch, group, seed)
    model.whiten(source.images_NCHW[:WHITENING_EXAMPLES])
    step = Step(
        model,
        loss,
        optimizer_of(model, arguments.batch, arguments.learning_rate),
        source,
        ranks=group,
        precision=precision,
        schedule=schedules(arguments.epochs),
        epochs=arguments.epochs,
        accumulation=arguments.accumulation,
        data_parallel=arguments.data_parallel,
    )
    tests = TestImages(test_set, normalise, group, 2000, channels_last=True)
    settings = replace(script.settings(arguments), seed=seed, test_every=arguments.epochs)
    return fit(step, lambda: evaluate(model, tests, group, precision, views), trackers, settings), model


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial.recipes.cifar10", description="Train CIFAR-10 to 94 %, fast.")
    script.add_folder_options(parser)
    script.add_training_options(parser, epochs=9, batch=2000, learning_rate=FILTER_RATE)
    parser.add_argument("--runs", type=script.positive, default=1, help="train from N seeds and print the mean")
    parser.add_argument("--widths", type=script.positive, nargs=3, default=WIDTHS, help="channels of the three blocks")
    arguments = script.parse(parser, argv)
    if arguments.runs > 1 and arguments.resume:
        raise InputError("--runs trains from scratch with several seeds: it cannot be combined with --resume")
    data = read_cifar10(arguments.data)
    torch.backends.cudnn.benchmark = True  # the shapes never change, so the search pays: once a process
    accuracies, seconds = [], []
    with ranks() as group, closing(open_trackers(arguments.track, arguments.models, first=group.first)) as trackers:
        for run in range(arguments.runs):
            outcome, model = train(data, arguments, group, arguments.seed + run, trackers)
            if outcome.terminated:
                return EXIT_TERMINATED
            accuracies.append(outcome.metrics["accuracy"])
            seconds.append(outcome.loop_s)
            if group.first:
                age = f", {process_age_s():.1f} s after the process began" if run == 0 else ""
                print(f"run {run + 1}: {accuracies[-1]:.2%} in a loop of {seconds[-1]:.3f} s{age}", flush=True)
        if group.first:
            if arguments.runs > 1:
                spread = statistics.stdev(accuracies)
                print(f"mean accuracy {statistics.fmean(accuracies):.3%} ± {spread:.3%} (n={arguments.runs})", end="")
                print(f", median loop {statistics.median(seconds):.3f} s", flush=True)
            saved = save_model(model, arguments.models, "cifar10")
            normalise = Normalisation.of(data[0].images_NCHW)
            examples = image_examples("cifar10", model, data[1].images_NCHW, normalise, CLASSES)
            saved.append(save_examples(examples, saved[-1]))
            for path in saved:
                print(f"saved {path}", flush=True)
    return 0


def process_age_s() -> float:
    """Seconds since this process was started, interpreter and imports included (proc(5): starttime in clock ticks)."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


if __name__ == "__main__":
    script.run(main)
