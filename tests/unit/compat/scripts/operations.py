"""Every operation of horovod.torch on two ranks, each with what must come of it; prints its name once it has."""

import horovod.torch as hvd
import torch
from checks import passed, raises

hvd.init()
hvd.init()  # a second time is none
rank, size = hvd.rank(), hvd.size()
assert hvd.is_initialized() and (size, hvd.local_size(), hvd.cross_size(), hvd.cross_rank()) == (2, 2, 1, 0)
assert hvd.local_rank() == rank and hvd.is_homogeneous()


def equal(found, wanted):
    wanted = torch.as_tensor(wanted, dtype=found.dtype)
    assert found.shape == wanted.shape and torch.equal(found, wanted), (found, wanted)


mine = torch.tensor([1.0, 2.0]) * (rank + 1)
equal(hvd.allreduce(mine, name="x"), [1.5, 3.0])
equal(mine, torch.tensor([1.0, 2.0]) * (rank + 1))
equal(hvd.allreduce(mine, average=False), [3.0, 6.0])
equal(hvd.allreduce(mine, op=hvd.Max), [2.0, 4.0])
equal(hvd.allreduce(mine, op=hvd.Min), [1.0, 2.0])
equal(hvd.allreduce(mine, op=hvd.Product), [2.0, 8.0])
equal(hvd.allreduce(mine, compression=hvd.Compression.fp16), [1.5, 3.0])
equal(hvd.allreduce(torch.tensor(rank)), 0)  # whole numbers lose the half
equal(hvd.allreduce(torch.tensor(rank + 1.0)), 1.5)
turned = torch.arange(6.0).reshape(2, 3).t() * (rank + 1)
hvd.allreduce_(turned, op=hvd.Sum)
equal(turned, torch.arange(6.0).reshape(2, 3).t() * 3)
raises(NotImplementedError, lambda: hvd.allreduce(mine, op=hvd.Adasum), "hvd.Adasum")
raises(ValueError, lambda: hvd.allreduce(mine, average=True, op=hvd.Sum), "not both")
passed("allreduce")

handle = hvd.allreduce_async(mine, op=hvd.Sum)
in_place = mine.clone()
other = hvd.allreduce_async_(in_place, average=True)
equal(hvd.synchronize(handle), [3.0, 6.0])
assert hvd.synchronize(other) is in_place and hvd.poll(other)
equal(in_place, [1.5, 3.0])
passed("asynchronous")

rows = torch.full((rank + 1, 2), float(rank))
equal(hvd.allgather(rows), [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
equal(hvd.allgather(torch.zeros((0 if rank == 0 else 2, 1))), [[0.0], [0.0]])
equal(hvd.allgather(torch.tensor(float(rank))), [0.0, 1.0])
equal(hvd.broadcast(mine, root_rank=1), [2.0, 4.0])
equal(mine, torch.tensor([1.0, 2.0]) * (rank + 1))
turned = torch.arange(6.0).reshape(2, 3).t() * (rank + 1)
hvd.broadcast_(turned, 1)
equal(turned, torch.arange(6.0).reshape(2, 3).t() * 2)
passed("allgather and broadcast")

hvd.barrier()
leaf = torch.ones(2, requires_grad=True)
for operation in (hvd.allreduce, hvd.allgather, lambda tensor: hvd.broadcast(tensor, 0)):
    raises(NotImplementedError, lambda operation=operation: operation(leaf), "the gradient of hvd.")
with torch.no_grad():
    equal(hvd.allreduce(leaf), [1.0, 1.0])
passed("gradients are refused, not lost")

assert hvd.broadcast_object({"epoch": 3, "rank": rank}, root_rank=1) == {"epoch": 3, "rank": 1}
assert hvd.allgather_object("a" * (rank + 1)) == ["a", "aa"]
passed("objects")

assert not (hvd.mpi_built() or hvd.mpi_enabled() or hvd.ddl_built() or hvd.ccl_built() or hvd.mpi_threads_supported())
assert hvd.gloo_built() and hvd.gloo_enabled() and hvd.nccl_built() == bool(torch.version.cuda)
raises(ImportError, lambda: hvd.elastic, "horovod.torch.elastic")
raises(ImportError, lambda: hvd.start_timeline("t.json"), "hvd.start_timeline")
raises(ImportError, lambda: hvd.alltoall(mine), "all_to_all_single")
raises(ImportError, lambda: hvd.init(comm=[0]), "torch.distributed.new_group")
assert not hasattr(hvd, "no_such_name")
passed("the rest")

hvd.shutdown()
assert not hvd.is_initialized()
raises(ValueError, hvd.rank, "hvd.init() has not been called")
raises(ImportError, hvd.init, "after hvd.shutdown()")
passed("shut down")
