"""Train ranks on unequally many batches in two epochs; one has none at first. Print the sum of all updates."""

import horovod.torch as hvd
import torch

hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.manual_seed(0)
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("w", weight)])

for epoch, batches in enumerate([[3, 0, 1], [1, 2, 5]]):
    mine = batches[rank]
    for _ in range(mine):
        optimizer.zero_grad()
        (-weight.sum() * size).backward()  # each rank with data adds 1 to the weight
        optimizer.step()
        hvd.allreduce(torch.tensor([1.0, 2.0]), name="loss")
    last = hvd.join()
    assert mine == max(batches[:size]) if last == rank else True
    shown = hvd.allgather_object((last, [epoch] * mine))
    assert len({each[0] for each in shown}) == 1, shown
    hvd.broadcast_parameters([("w", weight)], root_rank=last)

if rank == 0:
    print("weight", weight[0].item(), "last", last, flush=True)

# A rank that has joined takes part in reductions only.
try:
    if rank:
        hvd.join()
    else:
        hvd.broadcast_(torch.zeros(1), root_rank=0)
except hvd.HorovodInternalError as error:
    print("refused:", error, flush=True)
