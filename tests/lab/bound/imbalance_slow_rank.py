# expect: imbalanced; gpus: 2; launcher: torchrun
"""Rank 1 has the longer documents and works them up in Python: rank 0 waits for it in every backward pass."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)


def work_up(documents):
    return sum(len(word) % 7 for _ in range(documents) for word in ("a long document of words " * 20).split())


model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).to(device))
optimizer = torch.optim.AdamW(model.parameters())
end, stop, steps = time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0), torch.zeros(1, device=device), 0
while not stop.item():
    for _ in range(10):
        work_up(4000 if rank == 1 else 10)
        loss = model(torch.randn(64, 512, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    stop.fill_(time.time() > end)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
print(rank, steps)
dist.destroy_process_group()
