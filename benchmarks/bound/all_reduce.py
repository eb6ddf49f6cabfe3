"""Bound on purpose: two ranks all-reduce 1 GiB every step and compute little. Expected: communication-bound."""

import os
import time

import torch
import torch.distributed as dist
from device import CUDA, SECONDS

dist.init_process_group("nccl" if CUDA else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
if CUDA:
    torch.cuda.set_device(device)
gradients = torch.ones(2**28 if CUDA else 2**16, device=device)
small = torch.ones(256, 256, device=device)
stop = torch.zeros(1, device=device)
end = time.monotonic() + SECONDS
steps = 0

while not stop.item():  # the ranks stop together: one alone in an all-reduce would wait for ever
    for _ in range(5):
        dist.all_reduce(gradients)
        gradients.mul_(0.5)
        small.mm(small)
        steps += 1
    stop.fill_(time.monotonic() > end)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
print(f"{steps} steps")
dist.destroy_process_group()
