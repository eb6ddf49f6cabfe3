# expect: data-bound
"""Photos of twelve megapixels, unpacked in full and then made small, four workers for a GPU that wants hundreds."""

import sys
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HEIGHT, WIDTH = 3000, 4000


class Photos(Dataset):
    def __init__(self):
        rows = np.random.default_rng(0).integers(0, 40, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        self.packed = zlib.compress(rows.tobytes(), 1)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        image = np.frombuffer(zlib.decompress(self.packed), np.uint8).reshape(HEIGHT, WIDTH, 3)
        small = image[i % 13 :: 13, i % 17 :: 17][:224, :224].astype(np.float32) / 255
        return torch.from_numpy(small).permute(2, 0, 1), i % 100


class Trainer:
    def __init__(self, model, loader, device):
        self.model, self.loader, self.device = model.to(device), loader, device
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self, seconds):
        end = time.time() + seconds
        for images, labels in self.loader:
            images, labels = images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if time.time() > end:
                return loss.item()


if __name__ == "__main__":
    net = nn.Sequential(nn.Conv2d(3, 64, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 100))
    loader = DataLoader(Photos(), batch_size=8, num_workers=4, pin_memory=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(Trainer(net, loader, device).fit(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0))
