"""mnist: the classic two-convolution network on the original MNIST files, or any IDX folder of the same shape.

    python -m seatrial.recipes.mnist --data DIR --models DIR --epochs 5

Batch 64, Adam at 1e-3, five epochs: about 99 % test accuracy. Shapes: N images, C channels, H and W pixels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from seatrial.train import early_start
from seatrial.train.data.mnist import Bytes, IdxFolder, fetch, read_folder
from seatrial.train.options import data_folder

if __name__ == "__main__":
    early_start.begin((read_folder, data_folder(sys.argv[1:])))

import torch
from torch import nn

from seatrial.train import options
from seatrial.train.data.images import ImageSet, TestImages, training_images
from seatrial.train.errors import EXIT_TERMINATED, InputError
from seatrial.train.evaluation import evaluate
from seatrial.train.kernels.lenet import cross_entropy, logits, prepare
from seatrial.train.loop import Settings, fit, session, step_options
from seatrial.train.optim.optimizer import Optimizer, adam, adamw
from seatrial.train.optim.schedules import Schedule, cosine, triangle
from seatrial.train.saving.examples import Normalisation, numbered, save_images_model
from seatrial.train.step import Step

SCHEDULES: dict[str, Schedule | None] = {"constant": None, "triangle": triangle(0.2), "cosine": cosine(0.1)}


def network(height: int, width: int, classes: int) -> nn.Sequential:
    """Return 1→32→64 3×3 convolutions without padding, 2×2 max-pools, 128 units; 28×28 pixels flatten to 1600."""
    features = 64 * _pooled(height) * _pooled(width)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _pooled(pixels: int) -> int:
    left = ((pixels - 2) // 2 - 2) // 2
    if left < 1:
        raise InputError(f"images of {pixels} pixels are too small for this network: at least 10 are needed")
    return left


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    arguments = parse(argv, "mnist")
    if arguments.download:
        fetch(arguments.data)
    return train(early_start.read_ahead(read_folder, arguments.data), arguments, "mnist")


def parse(argv: Sequence[str], name: str) -> argparse.Namespace:
    """Parse the options, which the recipe digits shares."""
    parser = argparse.ArgumentParser(prog=f"seatrial.recipes.{name}", description=f"Train the classic CNN on {name}.")
    options.add_folder_options(parser)
    options.add_training_options(parser, epochs=5, batch=64, learning_rate=1e-3)
    parser.add_argument("--schedule", choices=tuple(SCHEDULES), default="triangle")
    parser.add_argument("--weight-decay", type=options.not_negative, default=0.0, help="AdamW's; 0 is Adam")
    if name == "mnist":
        parser.add_argument("--download", action="store_true", help="fetch the files into --data first")
    return options.parse(parser, argv)


def train(data: IdxFolder, arguments: argparse.Namespace, name: str) -> int:
    """Train, test after each epoch, save the model as NAME.pth and NAME.safetensors with examples; the exit code."""
    train_set, test_set = image_sets(data)
    normalise = Normalisation.of(train_set.images_NCHW)
    with session(arguments) as (group, precision, trackers):
        # Channels last, as Tensor-Core kernels read; on a core of a Xeon 1.2 times as fast as channels first.
        height, width = train_set.images_NCHW.shape[2:]
        model = network(height, width, train_set.classes).to(group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        layers = prepare(model, precision, (height, width))
        source = training_images(train_set, normalise, arguments.batch, group, arguments.seed)
        step = Step(
            model,
            cross_entropy,
            optimizer(model, arguments.learning_rate, arguments.weight_decay),
            source,
            schedule=SCHEDULES[arguments.schedule],
            **step_options(arguments, group, precision),
        )
        if group.first:
            print(f"{name}: {group.batch_words(arguments.batch)}\n{layers}", flush=True)
        tests = TestImages(test_set, normalise, group, 5000)

        def test() -> dict[str, float]:
            return evaluate(model, tests, group, precision, logits)

        if group.device.type == "cuda":
            test()  # what its first time loads and compiles is not the first epoch's
        outcome = fit(step, test, trackers, Settings.from_arguments(arguments))
        if outcome.terminated:
            return EXIT_TERMINATED
        if group.first:
            print(f"trained {outcome.examples:,} images in {outcome.loop_s:.3f} s", flush=True)
            labels = numbered(train_set.classes)
            save_images_model(name, arguments.models / name, model, test_set.images_NCHW, normalise, labels)
    return 0


def optimizer(model: nn.Module, learning_rate: float, weight_decay: float) -> Optimizer:
    """Return Adam, or AdamW if weights decay."""
    return adamw(model, learning_rate, weight_decay) if weight_decay else adam(model, learning_rate)


def image_sets(data: IdxFolder) -> tuple[ImageSet, ImageSet]:
    """Return training and test set as tensors with one channel."""

    def images(pixels: Bytes, labels: Bytes) -> ImageSet:
        return ImageSet(torch.tensor(pixels).unsqueeze(1), torch.tensor(labels).long(), data.classes)

    return images(data.train_images, data.train_labels), images(data.test_images, data.test_labels)


if __name__ == "__main__":
    options.run(main)
