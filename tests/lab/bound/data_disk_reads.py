# expect: data-bound
"""Every example is a compressed file of its own, read and unpacked when it is asked for, in the training process."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.npz"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with np.load(self.files[i]) as file:
            return torch.from_numpy(file["volume"].astype("float32")), int(file["label"])


def main(seconds):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        for i in range(64):
            volume = rng.integers(0, 9, (1, 32, 64, 64), dtype=np.int16)
            np.savez_compressed(f"{folder}/{i:05}.npz", volume=volume, label=i % 2)
        model = nn.Sequential(
            nn.Conv3d(1, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 2)
        ).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        end = time.time() + seconds
        while time.time() < end:
            for volume, label in DataLoader(Files(folder), batch_size=4, shuffle=True):
                loss = nn.functional.cross_entropy(model(volume.to(device)), label.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
