import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29777"
    dist.init_process_group("gloo", rank=rank, world_size=world)
    value = torch.ones(1)
    dist.all_reduce(value)
    if rank == 0:
        print("sum", value.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
