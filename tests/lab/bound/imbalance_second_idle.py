# expect: imbalanced; gpus: 2
"""Two GPUs were asked for, and one process that knows of one: the second is held, and sees a single tensor."""

import sys
import time

import torch
from torch import nn

CUDA = torch.cuda.is_available()
device = "cuda:0" if CUDA else "cpu"
if torch.cuda.device_count() > 1:
    teacher = torch.randn(4096, 4096, device="cuda:1")  # "for later"
    print("teacher", teacher.mean().item())
width = 4096 if CUDA else 64
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(4096, width, device=device)
end, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), 0
while time.time() < end:
    loss = nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        print(step, loss.item())
