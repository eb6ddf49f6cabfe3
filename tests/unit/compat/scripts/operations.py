"""Every operation of horovod.torch on two ranks, each with what must come of it; prints its name once it has."""

import horovod.torch as hvd
import torch

hvd.init()
hvd.init()  # a second time is none
rank, size = hvd.rank(), hvd.size()
assert hvd.is_initialized() and (size, hvd.local_size(), hvd.cross_size(), hvd.cross_rank()) == (2, 2, 1, 0)
assert hvd.local_rank() == rank and hvd.is_homogeneous()


def passed(name):
    if rank == 0:
        print("passed", name, flush=True)


def equal(found, wanted):
    wanted = torch.as_tensor(wanted, dtype=found.dtype)
    assert found.shape == wanted.shape and torch.equal(found, wanted), (found, wanted)


def raises(kind, call, words):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words}: nothing was raised")


mine = torch.tensor([1.0, 2.0]) * (rank + 1)
equal(hvd.allreduce(mine, name="x"), [1.5, 3.0])
equal(mine, torch.tensor([1.0, 2.0]) * (rank + 1))
equal(hvd.allreduce(mine, average=False), [3.0, 6.0])
equal(hvd.allreduce(mine, op=hvd.Max), [2.0, 4.0])
equal(hvd.allreduce(mine, op=hvd.Min), [1.0, 2.0])
equal(hvd.allreduce(mine, op=hvd.Product), [2.0, 8.0])
equal(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), [3.0, 6.0])
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
first, second = hvd.grouped_allreduce([mine, mine * 2], op=hvd.Sum)
equal(first, [3.0, 6.0]), equal(second, [6.0, 12.0])
pair = [mine.clone(), mine.clone() * 2]
assert hvd.grouped_allreduce_(pair, op=hvd.Sum)[1] is pair[1]
equal(pair[1], [6.0, 12.0])
passed("async and grouped")

rows = torch.full((rank + 1, 2), float(rank))
equal(hvd.allgather(rows), [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
equal(hvd.allgather(torch.zeros((0 if rank == 0 else 2, 1))), [[0.0], [0.0]])
equal(hvd.allgather(torch.tensor(float(rank))), [0.0, 1.0])
gathered = hvd.grouped_allgather([rows, mine])
equal(gathered[1], [1.0, 2.0, 2.0, 4.0])
equal(hvd.broadcast(mine, root_rank=1), [2.0, 4.0])
equal(mine, torch.tensor([1.0, 2.0]) * (rank + 1))
turned = torch.arange(6.0).reshape(2, 3).t() * (rank + 1)
hvd.broadcast_(turned, 1)
equal(turned, torch.arange(6.0).reshape(2, 3).t() * 2)
passed("allgather and broadcast")

equal(hvd.alltoall(torch.arange(4.0) + 10 * rank), [2.0 * rank, 2.0 * rank + 1, 10 + 2.0 * rank, 11 + 2.0 * rank])
received, splits = hvd.alltoall(torch.arange(3) + 10 * rank, splits=torch.tensor([1, 2]))
equal(received, [0, 10] if rank == 0 else [1, 2, 11, 12])
equal(splits, [1, 1] if rank == 0 else [2, 2])
raises(ValueError, lambda: hvd.alltoall(torch.arange(3), splits=[1, 1]), "do not divide")
equal(hvd.reducescatter(torch.arange(3.0), op=hvd.Sum), [0.0, 2.0] if rank == 0 else [4.0])
equal(hvd.reducescatter(torch.arange(4.0)), [0.0, 1.0] if rank == 0 else [2.0, 3.0])
hvd.barrier()
passed("alltoall and reducescatter")

leaf = torch.ones(2, requires_grad=True)
(hvd.allreduce(leaf * (rank + 1), op=hvd.Sum) * torch.tensor([1.0, 3.0])).sum().backward()
equal(leaf.grad, torch.tensor([2.0, 6.0]) * (rank + 1))
leaf = torch.ones(rank + 1, requires_grad=True)
(hvd.allgather(leaf) * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
equal(leaf.grad, [1.0] if rank == 0 else [2.0, 3.0])
leaf = torch.ones(2, requires_grad=True)
hvd.broadcast(leaf, 0).sum().backward()
equal(leaf.grad, [1.0, 1.0] if rank == 0 else [0.0, 0.0])
leaf = torch.ones(4, requires_grad=True)
(hvd.alltoall(leaf) * (rank + 1)).sum().backward()
equal(leaf.grad, [1.0, 1.0, 2.0, 2.0])
leaf = torch.ones(2, requires_grad=True)
(hvd.reducescatter(leaf, op=hvd.Sum) * (rank + 1)).sum().backward()
equal(leaf.grad, [2.0, 4.0])
passed("gradients")

assert hvd.broadcast_object({"epoch": 3, "rank": rank}, root_rank=1) == {"epoch": 3, "rank": 1}
assert hvd.allgather_object("a" * (rank + 1)) == ["a", "aa"]
only = hvd.add_process_set([1])
assert only.size() == 1 and only.included() == (rank == 1) and only.process_set_id == 1
if rank == 1:
    equal(hvd.allreduce(mine, process_set=only), [2.0, 4.0])
else:
    raises(ValueError, lambda: hvd.allreduce(mine, process_set=only), "is not in")
raises(ValueError, lambda: hvd.add_process_set([1]), "already")
raises(ValueError, lambda: hvd.add_process_set([5]), "not among")
assert hvd.remove_process_set(only) and not hvd.remove_process_set(hvd.global_process_set)
passed("objects and process sets")

weight = torch.sparse_coo_tensor([[rank, 2]], torch.ones(2), (4,))
equal(hvd.sparse_allreduce_async(weight, name="w", op=hvd.Sum)().to_dense(), [1.0, 1.0, 2.0, 0.0])
assert not (hvd.mpi_built() or hvd.mpi_enabled() or hvd.ddl_built() or hvd.ccl_built() or hvd.mpi_threads_supported())
assert hvd.gloo_built() and hvd.gloo_enabled() and hvd.nccl_built() == bool(torch.version.cuda)
raises(ImportError, lambda: hvd.elastic, "horovod.torch.elastic")
raises(ImportError, lambda: hvd.start_timeline("t.json"), "hvd.start_timeline")
raises(ImportError, lambda: hvd.init(comm=[0]), "hvd.add_process_set")
assert not hasattr(hvd, "no_such_name")
passed("the rest")

if rank == 0:  # it has one batch more
    equal(hvd.allreduce(torch.ones(2), op=hvd.Sum), [1.0, 1.0])
assert hvd.join() == 0
passed("join")

hvd.shutdown()
assert not hvd.is_initialized()
raises(ValueError, hvd.rank, "hvd.init() has not been called")
hvd.init()
equal(hvd.allreduce(torch.ones(1) * rank, op=hvd.Sum), [1.0])
passed("shut down and begun again")
