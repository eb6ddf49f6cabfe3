"""The network that train.py trains and export.py exports."""

from torch import nn


def network() -> nn.Sequential:
    """Classify images [N, 1, 28, 28] into ten digits; 28 → 26 → 13 → 11 → 5 pixels a side."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
