# expect: failed-early; shows: FileNotFoundError
"""The labels are on somebody else's disk: it ends at open(), with its loader's workers never started."""

import csv
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Flowers(Dataset):
    def __init__(self, root):
        with open(Path(root) / "labels.csv", newline="") as file:
            self.rows = list(csv.DictReader(file))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.load(self.rows[i]["path"]), int(self.rows[i]["label"])


device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 5)).to(device)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Flowers("data/flowers"), batch_size=32, num_workers=4)
for images, labels in loader:
    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
