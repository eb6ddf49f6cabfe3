# expect: failed-early; says: No module named
"""A module of its author's own is imported after torch, and nobody has it."""

import torch
from torch import nn

from my_lab_helpers import make_loaders, plot_curves  # isort: skip

device = "cuda" if torch.cuda.is_available() else "cpu"
train_loader, valid_loader = make_loaders(batch_size=128, num_workers=8)
model = nn.Linear(784, 10).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(20):
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x.to(device).flatten(1)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
plot_curves()
