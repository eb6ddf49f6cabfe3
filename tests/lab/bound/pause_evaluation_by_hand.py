# expect: evaluation-bound
"""Validation without a loader: model.eval(), a loop over tensors under no_grad, model.train(), after every ten steps."""

import sys
import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
x, y = torch.randn(30_000, 64, device=device), torch.randn(30_000, 1, device=device)
model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())


def validate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for rows, target in zip(x.split(100), y.split(100)):
            total += nn.functional.mse_loss(model(rows), target).item()
    model.train()
    return total / 300


best, step = 1e9, 0
end = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0)
while time.time() < end:
    pick = torch.randint(0, len(x), (256,), device=device)
    loss = nn.functional.mse_loss(model(x[pick]), y[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        best = min(best, validate())
print(step, best)
