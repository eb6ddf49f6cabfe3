# expect: host-memory-bound
"""Pinned and non_blocking, as one is told: but as float32 four bytes travel for each byte of the picture."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Ready batches, as of a memory-mapped file."""

    def __init__(self, count, pin):
        self.batches = [torch.rand(count, 3, 448, 448) for _ in range(2)]
        if pin:
            self.batches = [batch.pin_memory() for batch in self.batches]
        self.labels = torch.randint(0, 100, (count,))

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        return self.batches[i % 2], self.labels


def main():
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    net = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 100)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(Pictures(256 if cuda else 8, cuda), batch_size=None)
    end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())
        if time.time() > end:
            break


if __name__ == "__main__":
    main()
