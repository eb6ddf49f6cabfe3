"""Horovod's functions by their names: ranks, and operations on tensors."""

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from ..refused import refuse
from . import joining
from . import process_sets as sets
from . import world as worlds
from .compression import Compression
from .operations import Adasum as Adasum
from .operations import (
    Average,
    Handle,
    Sum,
    begin_all_gather,
    begin_all_reduce,
    begin_all_to_all,
    begin_broadcast,
    check_reduction,
    join_others,
    wait_for_all,
)
from .operations import HorovodInternalError as HorovodInternalError
from .operations import Max as Max
from .operations import Min as Min
from .operations import Product as Product
from .process_sets import ProcessSet, global_process_set
from .process_sets import add_process_set as add_process_set
from .process_sets import remove_process_set as remove_process_set
from .world import is_initialized as is_initialized

Tensor = torch.Tensor


def init(comm: Any = None, process_sets: Optional[Sequence[ProcessSet]] = None) -> None:
    """Join the other ranks. ``comm``, a part of the ranks or a communicator of MPI's, is refused."""
    if comm:
        refuse("hvd.init(comm=…)", "hvd.add_process_set for a part of the ranks: seatrial run --gpus 2 train.py")
    if worlds.connect():
        joining.begin()
    if isinstance(process_sets, str):  # "dynamic": they always are
        process_sets = None
    for each in process_sets or ():
        add_process_set(each)


def shutdown() -> None:
    """Leave the others."""
    sets.forget_process_sets()
    worlds.disconnect()


def rank() -> int:
    return worlds.world().rank


def size() -> int:
    return worlds.world().size


def local_rank() -> int:
    return worlds.world().local_rank


def local_size() -> int:
    return worlds.world().local_size


def cross_rank() -> int:
    return worlds.world().cross_rank


def cross_size() -> int:
    return worlds.world().cross_size


def is_homogeneous() -> bool:
    """torchrun starts equally many ranks on each node."""
    return True


def differentiable(there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """``there(tensor)``, whose gradient goes through ``back``."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: Tensor = _ThereAndBack.apply(there, back, tensor)  # type: ignore[no-untyped-call]
        return result
    return there(tensor.detach())


class _ThereAndBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
        ctx.back = back
        return there(tensor.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[None, None, Tensor]:  # type: ignore[override]
        return None, None, ctx.back(gradient)


def _chosen(op: Optional[int], average: Optional[bool]) -> int:
    """Raises NotInStandIn, ValueError."""
    if op is not None and average is not None:
        raise ValueError("hvd.allreduce takes op or average, not both")
    op = (Average if average or average is None else Sum) if op is None else op
    check_reduction(op)
    return op


def _scale(tensor: Tensor, factor: float) -> None:
    """In place; whole numbers lose what is behind the point."""
    if factor != 1.0:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(factor)
        else:
            tensor.copy_((tensor.double() * factor).trunc())


def _reduce_into(
    outputs: List[Tensor], op: int, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> Tuple[List[Any], Callable[[], None]]:
    """(works, what is to be done after them) of reducing tensors in place."""
    works = []
    buffers = [each.contiguous() for each in outputs]
    for buffer in buffers:
        _scale(buffer, prescale_factor)
        works.append(begin_all_reduce(buffer, Sum if op == Average else op, process_set))

    def finish() -> None:
        for output, buffer in zip(outputs, buffers):
            if op == Average and (count := process_set.size() or 1) > 1:
                rounding = None if buffer.is_floating_point() or buffer.is_complex() else "trunc"
                buffer.copy_(torch.div(buffer, count, rounding_mode=rounding))
            _scale(buffer, postscale_factor)
            if buffer is not output:
                output.copy_(buffer)

    return works, finish


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    op = _chosen(op, average)
    tensors = list(tensors)
    with torch.no_grad():
        inner = [each.detach() for each in tensors]
        works, finish = _reduce_into(inner, op, prescale_factor, postscale_factor, process_set)

    def finished() -> List[Tensor]:
        with torch.no_grad():
            finish()
        return tensors

    return Handle(works, finished)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    copies = [each.detach().clone(memory_format=torch.contiguous_format) for each in tensors]
    return grouped_allreduce_async_(copies, average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> List[Tensor]:
    return list(synchronize(grouped_allreduce_async_(tensors, *args, **kwargs)))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    further = (op, prescale_factor, postscale_factor, process_set)
    return [allreduce(each, average, name, compression, *further) for each in tensors]


def allreduce_async_(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    handle = grouped_allreduce_async_([tensor], *args, **kwargs)
    return Handle([handle], lambda: handle.wait()[0])


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    handle = grouped_allreduce_async([tensor], *args, **kwargs)
    return Handle([handle], lambda: handle.wait()[0])


def allreduce_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    result: Tensor = synchronize(allreduce_async_(tensor, *args, **kwargs))
    return result


def allreduce(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Average (or another ``op``) over the ranks; the gradient is reduced in the same way."""
    op = _chosen(op, average)
    further = (op, prescale_factor, postscale_factor, process_set)

    def reduced(each: Tensor) -> Tensor:
        result: Tensor = synchronize(allreduce_async(each, None, name, *further))
        return result

    compressed, ctx = compression.compress(tensor)
    result: Tensor = compression.decompress(differentiable(reduced, reduced, compressed), ctx)
    return result


def sparse_allreduce_async(
    tensor: Tensor, name: Optional[str] = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """A function that waits and returns the ranks' sparse tensors added up, for Average divided by their number."""
    check_reduction(op)
    tensor = tensor.coalesce()
    indices = allgather_async(tensor.indices().t().contiguous(), process_set=process_set)
    values = allgather_async(tensor.values(), process_set=process_set)

    def finished() -> Tensor:
        added, where = synchronize(values), synchronize(indices)
        added = added / (process_set.size() or 1) if op == Average else added
        return torch.sparse_coo_tensor(where.t(), added, tensor.size()).coalesce()

    return finished


def allgather_async(
    tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """The ranks' tensors behind each other; their first dimensions may differ."""
    rows = tensor.detach().contiguous().reshape(tensor.shape or (1,))
    counts = _gathered_counts([rows.shape[0]], process_set)[:, 0].tolist()
    most = max(counts)
    if rows.shape[0] < most:
        rows = torch.cat([rows, rows.new_zeros((most - rows.shape[0], *rows.shape[1:]))])
    gathered, work = begin_all_gather(rows, process_set)
    return Handle([work], lambda: torch.cat([each[:count] for each, count in zip(gathered, counts)]))


def _gathered_counts(counts: Sequence[int], process_set: ProcessSet) -> Tensor:
    """Row i is what rank i gave; all give equally many numbers."""
    gathered, work = begin_all_gather(torch.tensor(counts, dtype=torch.int64), process_set)
    if work is not None:
        work.wait()
    return torch.stack(gathered)


def allgather(tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """The gradient is the average of what the ranks have for this rank's rows."""
    rows = tensor.shape[0] if tensor.dim() else 1

    def gathered(each: Tensor) -> Tensor:
        result: Tensor = synchronize(allgather_async(each, name, process_set))
        return result

    def back(gradient: Tensor) -> Tensor:
        averaged = allreduce(gradient, op=Average, process_set=process_set)
        counts = _gathered_counts([rows], process_set)[:, 0]
        start = int(counts[: process_set.rank() or 0].sum())
        return averaged.narrow(0, start, rows).reshape(tensor.shape)

    return differentiable(gathered, back, tensor)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    handles = [allgather_async(each, name, process_set) for each in tensors]
    return Handle(handles, lambda: [each.wait() for each in handles])


def grouped_allgather(
    tensors: Sequence[Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Tensor]:
    return [allgather(each, name, process_set) for each in tensors]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    inner = tensor.detach()
    buffer = inner.contiguous()
    work = begin_broadcast(buffer, root_rank, process_set)

    def finished() -> Tensor:
        if buffer is not inner and buffer.data_ptr() != inner.data_ptr():
            with torch.no_grad():
                inner.copy_(buffer)
        return tensor

    return Handle([work], finished)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    result: Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def broadcast(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The root's tensor; its gradient is the ranks' average, and that of the others is zero."""

    def sent(each: Tensor) -> Tensor:
        result: Tensor = synchronize(broadcast_async(each, root_rank, name, process_set))
        return result

    def back(gradient: Tensor) -> Tensor:
        averaged = allreduce(gradient, op=Average, process_set=process_set)
        return averaged if rank() == root_rank else torch.zeros_like(averaged)

    return differentiable(sent, back, tensor)


def alltoall_async(
    tensor: Tensor,
    splits: Union[Tensor, Sequence[int], None] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Rows for each rank, ``splits`` of them or equally many; with ``splits``, (rows, how many came from each)."""
    count = process_set.size() or 1
    rows = tensor.detach().contiguous()
    given = splits is not None
    sent = [int(each) for each in splits] if splits is not None else [rows.shape[0] // count] * count
    if len(sent) != count or sum(sent) != rows.shape[0]:
        raise ValueError("splits %s do not divide %d rows among %d ranks" % (sent, rows.shape[0], count))
    came = _gathered_counts(sent, process_set)[:, process_set.rank() or 0]
    received = rows.new_empty((int(came.sum()), *rows.shape[1:]))
    work = begin_all_to_all(received, rows, came.tolist(), sent, process_set)
    return Handle([work], lambda: (received, came.to(torch.int32)) if given else received)


def alltoall(
    tensor: Tensor,
    splits: Union[Tensor, Sequence[int], None] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    came: List[Tensor] = []

    def exchanged(each: Tensor) -> Tensor:
        result = synchronize(alltoall_async(each, splits, name, process_set))
        if splits is None:
            return result  # type: ignore[no-any-return]
        came.append(result[1])
        return result[0]  # type: ignore[no-any-return]

    def back(gradient: Tensor) -> Tensor:
        if splits is None:
            return synchronize(alltoall_async(gradient, None, None, process_set))  # type: ignore[no-any-return]
        return synchronize(alltoall_async(gradient, came[0], None, process_set))[0]  # type: ignore[no-any-return]

    received = differentiable(exchanged, back, tensor)
    return received if splits is None else (received, came[0])


def reducescatter_async(
    tensor: Tensor,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """This rank's rows of what the ranks reduce; the first ranks have one more where they cannot be equally many."""
    if op not in (Average, Sum):
        raise NotImplementedError("hvd.reducescatter takes op=hvd.Average or op=hvd.Sum")
    whole = allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    count, mine = process_set.size() or 1, process_set.rank() or 0
    each, more = divmod(tensor.shape[0], count)
    start = mine * each + min(mine, more)
    return Handle([whole], lambda: whole.wait()[start : start + each + (mine < more)].clone())


def reducescatter(
    tensor: Tensor,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    further = (op, process_set, prescale_factor, postscale_factor)

    def scattered(each: Tensor) -> Tensor:
        result: Tensor = synchronize(reducescatter_async(each, name, *further))
        return result

    def back(gradient: Tensor) -> Tensor:
        factor = prescale_factor * postscale_factor * ((process_set.size() or 1) if op == Sum else 1)
        return allgather(gradient * factor, process_set=process_set)

    compressed, ctx = compression.compress(tensor)
    result: Tensor = compression.decompress(differentiable(scattered, back, compressed), ctx)
    return result


def grouped_reducescatter_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    handles = [reducescatter_async(each, *args, **kwargs) for each in tensors]
    return Handle(handles, lambda: [each.wait() for each in handles])


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> List[Tensor]:
    return [reducescatter(each, *args, **kwargs) for each in tensors]


def poll(handle: Handle) -> bool:
    """Whether ``synchronize`` would not have to wait."""
    return handle.is_completed()


def synchronize(handle: Any) -> Any:
    """Wait for an operation; its result."""
    return handle() if callable(handle) else handle.wait()


def join(device: int = -1) -> int:
    """This rank has no data left: take part with zeros until all say so. The number of the last that did."""
    return join_others()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    wait_for_all(process_set)


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_threads_supported() -> bool:
    return False


def gloo_built() -> bool:
    return bool(getattr(dist, "is_gloo_available", lambda: True)())


def gloo_enabled() -> bool:
    return gloo_built()


def nccl_built() -> bool:
    return bool(torch.version.cuda) and dist.is_nccl_available()


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return bool(torch.version.cuda)


def rocm_built() -> bool:
    return bool(getattr(torch.version, "hip", None))


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Horovod's timeline is not here."""
    refuse("hvd.start_timeline", "torch.profiler, or what the receipt measures: seatrial run --gpus 2 train.py")


def stop_timeline() -> None:
    refuse("hvd.stop_timeline", "torch.profiler, or what the receipt measures: seatrial run --gpus 2 train.py")
