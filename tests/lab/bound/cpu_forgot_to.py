# expect: cpu-only
"""A tutorial's regression network: nothing in it ever calls .to("cuda"), so the requested GPU stays idle."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
houses = torch.randn(20_000, 13)
prices = houses @ torch.randn(13, 1) + 0.1 * torch.randn(20_000, 1)
loader = DataLoader(TensorDataset(houses, prices), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

epoch, began = 0, time.time()
while time.time() - began < seconds:
    running = 0.0
    for features, price in loader:
        optimizer.zero_grad()
        loss = criterion(model(features), price)
        loss.backward()
        optimizer.step()
        running += loss.item()
    epoch += 1
    print(f"epoch {epoch}: loss {running / len(loader):.4f}")
