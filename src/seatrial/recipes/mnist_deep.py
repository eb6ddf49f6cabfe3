"""mnist-deep: a four-convolution network with batch normalisation, dropout and augmentation; MNIST or CIFAR-10.

    python -m seatrial.recipes.mnist_deep --data DIR --models DIR [--dataset cifar10]
    torchrun --nproc-per-node 4 -m seatrial.recipes.mnist_deep --data DIR

Convolutions 32-64-128-256 of 5×5, 5×5, 3×3, 3×3, each with batch norm, ReLU and 2×2 max-pool. Without padding
28×28 pixels would be gone before the third pool; so every convolution is padded to keep the size; the pools halve it,
28→14→7→3→1 and 32→16→8→4→2, and an adaptive average pool makes 1×1 of either. Then 256→128→64→classes, dropout 0.5.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from seatrial.train import early_start

if __name__ == "__main__":
    early_start.begin()

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.recipes.mnist import image_sets
from seatrial.train import options
from seatrial.train.data import cifar10
from seatrial.train.data.images import TestImages, affine, training_images
from seatrial.train.data.mnist import fetch, read_folder
from seatrial.train.distributed import Ranks
from seatrial.train.errors import EXIT_TERMINATED
from seatrial.train.evaluation import evaluate
from seatrial.train.loop import Settings, fit, session, step_options
from seatrial.train.memory import summary
from seatrial.train.optim.optimizer import adamw
from seatrial.train.optim.schedules import cosine
from seatrial.train.precision import Precision
from seatrial.train.progress import TrainingOutcome
from seatrial.train.saving.atomic import write_text
from seatrial.train.saving.examples import Normalisation, numbered, save_images_model
from seatrial.train.step import Step

WIDTHS_AND_KERNELS = ((32, 5), (64, 5), (128, 3), (256, 3))
DROPOUT, WEIGHT_DECAY = 0.5, 1e-4
ROTATION_DEGREES, SHIFT = 10.0, 0.1


def network(channels: int, classes: int) -> nn.Sequential:
    """Return the network of the module's text, for images of at least 16 pixels."""
    layers: list[nn.Module] = []
    for width, kernel in WIDTHS_AND_KERNELS:
        convolution = nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for inputs, outputs in ((256, 128), (128, 64)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*layers, nn.Linear(64, classes))


def loss(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return F.cross_entropy(model(images_BCHW), labels_B)


def main(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="seatrial.recipes.mnist_deep", description="Train the four-conv network.")
    options.add_folder_options(parser)
    options.add_training_options(parser, epochs=20, batch=128, learning_rate=1e-3)
    parser.add_argument("--weight-decay", type=options.not_negative, default=WEIGHT_DECAY)
    parser.add_argument("--dataset", choices=("mnist", "cifar10"), default="mnist")
    parser.add_argument("--download", action="store_true", help="fetch the files of MNIST into --data first")
    arguments = options.parse(parser, argv)
    if arguments.download:
        fetch(arguments.data)
    cifar = arguments.dataset == "cifar10"
    train_set, test_set = (
        cifar10.image_sets(cifar10.read_records(arguments.data)) if cifar else image_sets(read_folder(arguments.data))
    )
    labels = cifar10.CLASSES if cifar else numbered(train_set.classes)
    channels = train_set.images_NCHW.shape[1]
    augment = partial(affine, degrees=ROTATION_DEGREES, shift=SHIFT)
    normalise = Normalisation.of(train_set.images_NCHW)
    with session(arguments) as (group, precision, trackers):
        model = network(channels, train_set.classes).to(group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        source = training_images(train_set, normalise, arguments.batch, group, arguments.seed, augment)
        step = Step(
            model,
            loss,
            adamw(model, arguments.learning_rate, arguments.weight_decay),
            source,
            schedule=cosine(),
            kernels=not arguments.data_parallel,
            **step_options(arguments, group, precision),
        )
        if group.first:
            print(f"mnist-deep: {group.batch_words(arguments.batch)}", flush=True)
        tests = TestImages(test_set, normalise, group)
        settings = Settings.from_arguments(arguments)
        outcome = fit(step, lambda: evaluate(model, tests, group, precision), trackers, settings)
        if outcome.terminated:
            return EXIT_TERMINATED
        if group.first:
            accuracy, test_loss = outcome.metrics["accuracy"], outcome.metrics["test_loss"]
            print(f"test accuracy {accuracy:.2%}, test loss {test_loss:.4f}", flush=True)
            print(summary(group.device), flush=True)
            images = test_set.images_NCHW
            save_images_model("mnist-deep", arguments.models / "trained-model", model, images, normalise, labels)
            save_metadata(model, arguments, outcome, group, precision)
    return 0


def save_metadata(
    model: nn.Sequential, arguments: argparse.Namespace, outcome: TrainingOutcome, group: Ranks, precision: Precision
) -> None:
    """Write training_metadata.txt into the models folder."""
    facts = {
        "dataset": arguments.dataset,
        "model": "four convolutions 32-64-128-256",
        "classes": model[-1].out_features,
        "channels": model[0].in_channels,
        "test accuracy": f"{outcome.metrics['accuracy']:.4f}",
        "test loss": f"{outcome.metrics['test_loss']:.4f}",
        "best test accuracy": f"{outcome.best_accuracy:.4f}",
        "epochs": outcome.epochs,
        "batch size per rank": arguments.batch,
        "learning rate": arguments.learning_rate,
        "mixed precision": precision.name if precision.name in ("bf16", "fp16") else "no",
        "world size": group.world,
        "device": torch.cuda.get_device_name(group.device) if group.device.type == "cuda" else "cpu",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    path = arguments.models / "training_metadata.txt"
    write_text(path, "".join(f"{name}: {value}\n" for name, value in facts.items()))
    print(f"saved {path}", flush=True)


if __name__ == "__main__":
    options.run(main)
