"""Tensors from each rank to others: allgather, broadcast, alltoall, reducescatter, and sparse tensors added up."""

from typing import Any, Callable, List, Optional, Sequence, Union

import torch

from .compression import Compression
from .differentiable import Tensor, differentiable
from .operations import (
    Average,
    Handle,
    Sum,
    begin_all_gather,
    begin_all_to_all,
    begin_broadcast,
    check_reduction,
    synchronize,
)
from .process_sets import ProcessSet, global_process_set
from .reductions import allreduce, allreduce_async
from .world import world


def allgather_async(tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Handle:
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
        return averaged if world().rank == root_rank else torch.zeros_like(averaged)

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
