# expect: checkpoint-bound
"""A checkpoint of model and optimizer after every tenth step: "better safe than sorry"."""

import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
width = 2048 if CUDA else 512
model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(12)]).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
x = torch.randn(256, width, device=device)
with tempfile.TemporaryDirectory() as folder:
    end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
    while time.time() < end:
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(folder) / "last.pt")
print(step, loss.item())
