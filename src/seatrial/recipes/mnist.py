"""mnist: the classic two-convolution network on the original MNIST files, or any IDX folder of the same shape.

    python -m seatrial.recipes.mnist --data DIR --models DIR --epochs 5

Batch 64, Adam at 1e-3, five epochs: about 99 % test accuracy. Shapes: N images, C channels, H and W pixels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train import script
from seatrial.train.checkpoint import CheckpointWriter, load_model, load_newest
from seatrial.train.download import RemoteFile, fetch
from seatrial.train.errors import EXIT_TERMINATED, InputError
from seatrial.train.idx import IdxFolder, read_folder
from seatrial.train.rng import rng_state, seed_all, set_rng_state
from seatrial.train.save import save_model
from seatrial.train.trackers import Trackers, open_trackers

#: Public mirrors of the original files, as torchvision 0.27 (datasets/mnist.py) and TensorFlow Datasets name them.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
#: SHA-256 of files whose MD5 are the ones torchvision publishes (f68b3c2d…, d53e105e…, 9fb629c4…, ec29112d…).
FILES = (
    RemoteFile("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    RemoteFile("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    RemoteFile("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    RemoteFile("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
LOG_EVERY_STEPS = 100
TEST_BATCH = 1000


def network(height: int, width: int, classes: int) -> nn.Sequential:
    """1→32→64 3×3 convolutions without padding, 2×2 max-pools, 128 units; 28×28 pixels flatten to 1600."""
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
    """The command line; returns the exit code."""
    arguments = parse(argv, "mnist")
    if arguments.download:
        fetch(FILES, MIRRORS, arguments.data)
    return train(read_folder(arguments.data), arguments, "mnist")


def parse(argv: Sequence[str], name: str) -> argparse.Namespace:
    """The options, which the recipe digits shares."""
    parser = argparse.ArgumentParser(prog=f"seatrial.recipes.{name}", description=f"Train the classic CNN on {name}.")
    script.add_folder_options(parser)
    parser.add_argument("--epochs", type=script.positive, default=5)
    parser.add_argument("--batch", type=script.positive, default=64)
    parser.add_argument("--learning-rate", type=script.positive_float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    if name == "mnist":
        parser.add_argument("--download", action="store_true", help="fetch the files into --data first")
    arguments = parser.parse_args(argv)
    script.settle_folders(arguments)
    return arguments


def train(data: IdxFolder, arguments: argparse.Namespace, name: str) -> int:
    """Train, test after each epoch, save the model as NAME.pth and NAME.safetensors; the exit code."""
    if arguments.batch > len(data.train_images):
        raise InputError(f"--batch {arguments.batch} is larger than the {len(data.train_images)} training images")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seed_all(arguments.seed)
    height, width = data.train_images.shape[1:]
    model = network(height, width, data.classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate)
    images_NCHW, labels_N = _tensors(data.train_images, data.train_labels, device)
    mean, deviation = images_NCHW.mean(), images_NCHW.std()
    images_NCHW.sub_(mean).div_(deviation)
    test_images_NCHW, test_labels_N = _tensors(data.test_images, data.test_labels, device)
    test_images_NCHW.sub_(mean).div_(deviation)

    first_epoch, first_step = _resume(arguments.resume, model, optimizer) if arguments.resume else (1, 0)
    print(
        f"{name}: {len(labels_N)} images on {device}, batch {arguments.batch}, Adam {arguments.learning_rate}",
        flush=True,
    )
    steps = -(-len(labels_N) // arguments.batch)
    trackers = open_trackers()
    writer = CheckpointWriter(arguments.checkpoints)
    with script.StopRequest() as stop:
        for epoch in range(first_epoch, arguments.epochs + 1):
            began = time.perf_counter()
            order_N = torch.randperm(
                len(labels_N), generator=torch.Generator().manual_seed(arguments.seed * 10_000 + epoch)
            )
            loss_sum, seen = torch.zeros((), device=device), 0
            for step in range(first_step, steps):
                batch = order_N[step * arguments.batch : (step + 1) * arguments.batch].to(device)
                loss = F.cross_entropy(model(images_NCHW[batch]), labels_N[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss_sum += loss.detach() * len(batch)
                seen += len(batch)
                if (step + 1) % LOG_EVERY_STEPS == 0:
                    done = (epoch - 1) * steps + step + 1
                    trackers.log({"step": done, "epoch": epoch, "loss": loss.item(), "phase": "train"})
                if stop.requested:
                    _save(writer, model, optimizer, epoch, step + 1, steps)
                    writer.close()
                    print(
                        f"terminated: saved after epoch {epoch}, step {step + 1} in {arguments.checkpoints}", flush=True
                    )
                    return EXIT_TERMINATED
            train_loss = loss_sum.item() / max(1, seen)
            images_per_s = seen / (time.perf_counter() - began)
            test_loss, accuracy = evaluate(model, test_images_NCHW, test_labels_N)
            _report(trackers, epoch, epoch * steps, train_loss, test_loss, accuracy, seen, images_per_s)
            first_step = 0
            _save(writer, model, optimizer, epoch + 1, 0, steps)
    writer.close()
    trackers.close()
    for path in save_model(model, arguments.models, name):
        print(f"saved {path}", flush=True)
    return 0


@torch.no_grad()
def evaluate(model: nn.Module, images_NCHW: Tensor, labels_N: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy over the whole set."""
    model.eval()
    loss_sum, correct = torch.zeros((), device=labels_N.device), torch.zeros((), device=labels_N.device)
    for first in range(0, len(labels_N), TEST_BATCH):
        images, labels = images_NCHW[first : first + TEST_BATCH], labels_N[first : first + TEST_BATCH]
        logits = model(images)
        loss_sum += F.cross_entropy(logits, labels, reduction="sum")
        correct += (logits.argmax(1) == labels).sum()
    model.train()
    return loss_sum.item() / len(labels_N), correct.item() / len(labels_N)


def _tensors(images: object, labels: object, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(images, device=device).unsqueeze(1).float(), torch.tensor(labels, device=device).long()


def _save(
    writer: CheckpointWriter, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, step: int, steps: int
) -> None:
    position = {"epoch": epoch, "step": step}
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng_state(), **position}
    writer.save((epoch - 1) * steps + step, state)


def _resume(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    state = load_newest(place, print)
    load_model(model, state["model"], str(place))
    optimizer.load_state_dict(state["optimizer"])
    set_rng_state(state["rng"])
    print(f"resumed from {place}: epoch {state['epoch']}, step {state['step']}", flush=True)
    return state["epoch"], state["step"]


def _report(
    trackers: Trackers,
    epoch: int,
    step: int,
    train_loss: float,
    test_loss: float,
    accuracy: float,
    images: int,
    images_per_s: float,
) -> None:
    memory = {}
    line = f"epoch {epoch}: loss {train_loss:.4f}, test loss {test_loss:.4f}, accuracy {accuracy:.2%}"
    line += f", {images_per_s:,.0f} images/s"
    if torch.cuda.is_available():
        memory = {
            "gpu_memory_allocated_bytes": torch.cuda.max_memory_allocated(),
            "gpu_memory_reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        allocated_mb, reserved_mb = (number / 1e6 for number in memory.values())
        line += f", GPU memory {allocated_mb:.0f} MB allocated, {reserved_mb:.0f} MB reserved"
    print(line, flush=True)
    common = {"step": step, "epoch": epoch}
    trackers.log(
        {**common, "phase": "train", "loss": train_loss, "images": images, "images_per_s": images_per_s, **memory}
    )
    trackers.log({**common, "phase": "test", "test_loss": test_loss, "accuracy": accuracy})


if __name__ == "__main__":
    script.run(main)
