# expect: throttled; needs: container; flags: --cpus 0.5
"""Half a core for a loader that would keep two busy: the kernel stops the container in every period."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Numbers(IterableDataset):
    def __iter__(self):
        while True:
            total = 0.0
            for i in range(20_000):
                total += i * 1e-9
            yield torch.full((128,), total)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
        loss = model(batch.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if time.time() > end:
            break
    print("done")
