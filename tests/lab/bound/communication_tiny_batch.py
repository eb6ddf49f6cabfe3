# expect: communication-bound; gpus: 2; launcher: torchrun
"""DDP with two examples a GPU and a billion parameters: a backward pass is far shorter than sending its gradients."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    width = 6144 if cuda else 64
    net = nn.Sequential(*[nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(24)]).to(device)
    ddp = DDP(net, device_ids=[local] if cuda else None)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    end, stop, steps = (
        time.time() + (float(sys.argv[1]) if len(sys.argv) > 1 else 8.0),
        torch.zeros(1, device=device),
        0,
    )
    while not stop.item():
        for _ in range(5):
            loss = ddp(torch.randn(2, width, device=device)).square().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            steps += 1
        stop.fill_(time.time() > end)
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    print(f"rank {dist.get_rank()}: {steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
