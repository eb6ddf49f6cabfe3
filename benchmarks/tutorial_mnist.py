"""The baseline: MNIST as tutorials write it. A DataLoader over per-image transforms, eager kernels, .item() every step.

    python benchmarks/tutorial_mnist.py --data DIR --workers 4

torchvision's ToTensor and Normalize when it is installed, else the same arithmetic by hand. Prints one JSON line.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from seatrial.recipes.mnist import network
from seatrial.train.data.mnist import read_folder

MEAN, DEVIATION = 0.1307, 0.3081


class Images(Dataset):
    """One image at a time, transformed when it is asked for, as torchvision's MNIST does."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        try:
            from PIL import Image
            from torchvision import transforms
        except ImportError:
            self.transform = lambda image: (torch.tensor(image).float().div(255).unsqueeze(0) - MEAN) / DEVIATION
        else:
            steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((MEAN,), (DEVIATION,))])
            self.transform = lambda image: steps(Image.fromarray(image))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.labels[index])


def main():
    """Train, test after each epoch, and say how long the loop took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = read_folder(arguments.data)
    pin = device == "cuda"
    train = DataLoader(
        Images(data.train_images, data.train_labels),
        arguments.batch,
        shuffle=True,
        num_workers=arguments.workers,
        pin_memory=pin,
        persistent_workers=arguments.workers > 0,
    )
    test = DataLoader(Images(data.test_images, data.test_labels), 1000, num_workers=arguments.workers, pin_memory=pin)
    model: nn.Module = network(28, 28, 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    began = time.perf_counter()
    epochs_s = []
    for _ in range(arguments.epochs):
        epoch_began = time.perf_counter()
        running = 0.0
        for images, labels in train:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        epochs_s.append(time.perf_counter() - epoch_began)
        model.eval()
        with torch.no_grad():
            correct = sum(
                (model(images.to(device)).argmax(1) == labels.to(device)).sum().item() for images, labels in test
            )
        model.train()
        print(f"loss {running / len(train):.4f}, accuracy {correct / len(data.test_labels):.2%}", flush=True)
    seconds = time.perf_counter() - began
    accuracy = correct / len(data.test_labels)
    print(json.dumps({"loop_s": seconds, "epochs_s": epochs_s, "accuracy": accuracy, "workers": arguments.workers}))


if __name__ == "__main__":
    main()
