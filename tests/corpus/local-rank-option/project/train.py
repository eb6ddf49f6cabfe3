import argparse

import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()

dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, GPU {args.local_rank}, epochs {args.epochs}")
dist.destroy_process_group()
