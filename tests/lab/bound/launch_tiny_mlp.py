# expect: launch-bound
"""A deep and narrow network on data that is on the GPU already: a thousand launches a step of microseconds each."""

import sys
import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
layers = []
for _ in range(20):
    layers += [nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()]
model = nn.Sequential(*layers, nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters())
X, y = torch.randn(50_000, 64, device=device), torch.randn(50_000, 1, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    rows = torch.randint(0, len(X), (64,), device=device)
    loss = nn.functional.mse_loss(model(X[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
print(f"{step} steps, {loss.item():.4f}")
