"""Bound on purpose: two ranks all-reduce 1 GiB every step and compute little. Expected: communication-bound."""

import os

import torch
import torch.distributed as dist
from device import CUDA, until_done

dist.init_process_group("nccl" if CUDA else "gloo")
rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank) if CUDA else torch.device("cpu")
if CUDA:
    torch.cuda.set_device(device)
gradients = torch.ones(2**28 if CUDA else 2**16, device=device)
small = torch.ones(256, 256, device=device)


def step():
    dist.all_reduce(gradients)
    gradients.mul_(0.5)
    small.mm(small)


until_done(step, sync_every=5)
os._exit(0)  # ranks stop by their own clocks; nobody waits for the other's last all-reduce
