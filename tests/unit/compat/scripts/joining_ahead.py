"""Let a rank join three operations ahead of the other, as NCCL allows; the other takes part in what it missed."""

import threading
import time

import torch
import torch.distributed as dist
from horovod.torch import world

store = dist.HashStore()
taken, last = {0: [], 1: []}, {}


def rank(number: int, operations: int) -> None:
    mine = world.Joining(store, number, 2)
    for _ in range(operations):
        mine.announce("1", torch.zeros(number + 1))
    last[number] = mine.join(lambda kind, zeros: taken[number].append(tuple(zeros.shape)))


ahead = threading.Thread(target=rank, args=(1, 3), daemon=True)
ahead.start()
while not store.check(["joined-1"]):
    time.sleep(0.001)
rank(0, 1)
ahead.join(20)
print(taken, [last[number] for number in (0, 1)])
