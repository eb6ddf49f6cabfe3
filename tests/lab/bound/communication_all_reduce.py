# expect: communication-bound; gpus: 2; launcher: torchrun
"""Data parallel by hand: every parameter's gradient is all-reduced after the backward pass, 4 GB for a tiny batch."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

CUDA = torch.cuda.is_available()
dist.init_process_group("nccl" if CUDA else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
if CUDA:
    torch.cuda.set_device(device)
width = 8192 if CUDA else 64
model = nn.Sequential(*[nn.Linear(width, width) for _ in range(16)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
end, stop, step = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), torch.zeros(1, device=device), 0
while not stop.item():
    for _ in range(5):
        loss = model(torch.randn(4, width, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        step += 1
    stop.fill_(time.time() > end)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
print(rank, step, loss.item())
dist.destroy_process_group()
