# expect: data-bound
"""A table kept as JSON lines: each row is parsed and turned into features when a batch wants it, in two workers."""

import json
import math
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clicks(Dataset):
    def __init__(self):
        event = {
            "site": "example",
            "events": [{"t": i * 0.5, "x": i % 97, "y": i % 89, "kind": "move"} for i in range(600)],
        }
        self.lines = [json.dumps({**event, "label": i % 2}) for i in range(500)]

    def __len__(self):
        return 10_000_000

    def __getitem__(self, i):
        row = json.loads(self.lines[i % 500])
        path = [math.hypot(e["x"], e["y"]) / (1 + e["t"]) for e in row["events"]]
        return torch.tensor(path), torch.tensor(float(row["label"]))


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(600, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Clicks(), batch_size=128, num_workers=2)
    end = time.time() + seconds
    for paths, labels in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(paths.to(device)).squeeze(1), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if time.time() > end:
            break


if __name__ == "__main__":
    main()
