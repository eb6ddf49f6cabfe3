# expect: synchronisation-bound
"""Metrics the honest way: accuracy, losses and norms as Python numbers, a dozen .item() in each step."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
width = 2048 if CUDA else 64
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
while time.time() < end:
    x, y = torch.randn(2048, width, device=device), torch.randint(0, 10, (2048,), device=device)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    metrics = {"loss": loss.item(), "accuracy": (logits.argmax(1) == y).float().mean().item()}
    for k in range(10):
        metrics[f"recall_{k}"] = ((logits.argmax(1) == k) & (y == k)).sum().item()
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        metrics[f"norm/{name}"] = parameter.grad.norm().item()
    optimizer.step()
    history.append(metrics)
print(len(history), history[-1]["loss"])
