import os

import torch
from torch.distributed import destroy_process_group, init_process_group

device = "cuda"
exec(open("configurator.py").read())
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
print("ddp", ddp)
print(torch.ones(1, device=device).device)
if ddp:
    destroy_process_group()
