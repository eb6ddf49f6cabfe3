# expect: cpu-only; shows: CUDA_VISIBLE_DEVICES
"""Copied from a notebook: a line near the top hides every GPU, and the usual device line then quietly takes the CPU."""

import os
import sys
import time

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # debugging

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
model = nn.LSTM(32, 64, batch_first=True).to(device)
head = nn.Linear(64, 5).to(device)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)

began, step = time.time(), 0
while time.time() - began < seconds:
    series = torch.randn(32, 20, 32, device=device)
    target = torch.randint(0, 5, (32,), device=device)
    out, _ = model(series)
    loss = nn.functional.cross_entropy(head(out[:, -1]), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 200 == 0:
        print(step, loss.item())
