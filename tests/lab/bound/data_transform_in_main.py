# expect: data-bound
"""Image augmentation written in numpy, in __getitem__, with the default loader: the training process does it all."""

import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self, count=4096):
        self.images = np.random.default_rng(0).integers(0, 255, (256, 96, 96, 3), dtype=np.uint8)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        image = self.images[i % 256].astype(np.float64) / 255.0
        for _ in range(3):  # blur
            image = (image + np.roll(image, 1, 0) + np.roll(image, -1, 0) + np.roll(image, 1, 1)) / 4
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        image = (image - image.mean((0, 1))) / (image.std((0, 1)) + 1e-6)
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float(), i % 10


device = "cuda" if torch.cuda.is_available() else "cpu"
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
).to(device)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
end = time.time() + seconds
for images, labels in DataLoader(Augmented(1_000_000), batch_size=32, shuffle=True):
    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if time.time() > end:
        break
print("loss", loss.item())
