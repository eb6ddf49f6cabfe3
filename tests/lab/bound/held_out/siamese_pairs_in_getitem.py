# expect: data-bound
"""Siamese pairs are drawn by searching the whole label list for each example, in the dataset, with two workers."""

import random
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n=60_000):
        self.x = torch.randn(n, 64)
        self.y = [random.randrange(100) for _ in range(n)]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        same = i % 2 == 0
        fitting = [j for j, label in enumerate(self.y) if (label == self.y[i]) == same]
        return self.x[i], self.x[random.choice(fitting)], float(same)


def main(budget):
    dev = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    tower = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).to(dev)
    opt = optim.RMSprop(tower.parameters(), lr=1e-3)
    t0 = time.monotonic()
    for epoch in range(100):
        for a, b, same in DataLoader(Pairs(), 32, shuffle=True, num_workers=2):
            d = F.pairwise_distance(tower(a.to(dev)), tower(b.to(dev)))
            loss = torch.where(same.to(dev) > 0, d, F.relu(1 - d)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if time.monotonic() - t0 > budget:
                return


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
