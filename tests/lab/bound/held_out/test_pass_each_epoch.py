# expect: evaluation-bound
"""Short epochs of ten batches, and after each a test pass ten times as long, in the style of the MNIST example."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(model, loader, optimizer):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        F.nll_loss(model(data), target).backward()
        optimizer.step()


def test(model, loader):
    model.eval()
    loss = correct = 0
    with torch.inference_mode():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(1).eq(target).sum().item()
    print(f"loss {loss / len(loader.dataset):.4f} accuracy {correct / len(loader.dataset):.3f}")


def images(n):
    return TensorDataset(torch.randn(n, 1, 16, 16), torch.randint(0, 10, (n,)))


model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10), nn.LogSoftmax(1)).to(
    device
)
optimizer = torch.optim.Adadelta(model.parameters())
t = time.time()
while time.time() - t < (float(sys.argv[1]) if len(sys.argv) > 1 else 8):
    train(model, DataLoader(images(640), 64, shuffle=True), optimizer)
    test(model, DataLoader(images(6400), 64))
