# expect: compute-bound; tags: fp32
"""Wide layers in plain float32, TF32 left off as it is by default: the GPU multiplies all day, without tensor cores."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda" if CUDA else "cpu"
width = 6144 if CUDA else 128
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(8192 if CUDA else 64, width, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        print(step, loss.item())
