"""Train a small convolutional network on handwritten digits; save the weights of its best epoch.

``--data`` is a folder with MNIST's four IDX files. Without them, scikit-learn's 1,797 digits of 8×8 pixels stand in,
enlarged to MNIST's 28×28.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers.

    28×28 → convolution 26 → pool 13 → convolution 11 → pool 5, so the first linear layer takes 64 × 5 × 5 = 1600.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64 * 5 * 5, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images))


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read an IDX file of unsigned bytes, plain or gzipped. The header is 4 bytes and 4 more for each dimension."""
    packed = folder / f"{name}.gz"
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", dimensions, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def load(folder: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training and test sets: images float32 [N, 1, 28, 28], normalised, and labels int64 [N]."""
    if any(folder.glob("train-images-idx3-ubyte*")):
        print(f"data: MNIST from {folder}")
        arrays = [
            read_idx(folder, f"{part}-{kind}-ubyte")
            for part in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ]
        images, labels, test_images, test_labels = arrays
    else:
        print(f"data: no MNIST in {folder}; scikit-learn's digits, enlarged")
        small, labels = load_digits(return_X_y=True)
        images = np.kron(small.reshape(-1, 8, 8) * 255 / 16, np.ones((3, 3)))
        order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by writer
        images, labels = np.pad(images, ((0, 0), (2, 2), (2, 2)))[order], labels[order]
        images, test_images = images[:1500], images[1500:]
        labels, test_labels = labels[:1500], labels[1500:]

    def tensor(pixels: np.ndarray) -> torch.Tensor:
        return ((torch.from_numpy(pixels.astype(np.float32)) / 255 - 0.1307) / 0.3081).unsqueeze(1)

    return (
        tensor(images), torch.from_numpy(labels.astype(np.int64)),
        tensor(test_images), torch.from_numpy(test_labels.astype(np.int64)),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/data"))
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--epochs", type=int, default=os.environ.get("EPOCHS", "5"))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--patience", type=int, default=3, help="epochs without a better accuracy before it stops")
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("device:", torch.cuda.get_device_name() if device.type == "cuda" else "CPU")
    options.out.mkdir(parents=True, exist_ok=True)  # before the training, not after it
    torch.manual_seed(0)
    images, labels, test_images, test_labels = (part.to(device) for part in load(options.data))
    model = SmallCNN().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)

    best, waited = 0.0, 0
    for epoch in range(1, options.epochs + 1):
        began, total = time.perf_counter(), 0.0
        for chosen in torch.randperm(len(images), device=device).split(options.batch):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(chosen)  # stays on the GPU: .item() in each step would wait for it
        with torch.no_grad():
            right = sum(
                (model(part).argmax(1) == answers).sum()
                for part, answers in zip(test_images.split(1000), test_labels.split(1000), strict=True)
            )
        accuracy, mean_loss = float(right) / len(test_labels), float(total) / len(images)
        print(
            f"epoch {epoch}: loss {mean_loss:.4f}, test accuracy {accuracy:.2%}, {time.perf_counter() - began:.2f} s",
            flush=True,
        )
        with Path(os.environ.get("SEATRIAL_EVENTS", os.devnull)).open("a") as numbers:
            print(json.dumps({"epoch": epoch, "loss": mean_loss, "test_accuracy": accuracy}), file=numbers)
        waited += 1
        if accuracy > best:
            best, waited = accuracy, 0
            torch.save(model.state_dict(), options.out / "mnist_cnn.pth")
        if waited == options.patience:
            print(f"no better for {waited} epochs: stopped")
            break
    print(f"best test accuracy {best:.2%}; saved to {options.out / 'mnist_cnn.pth'}")


if __name__ == "__main__":
    main()
