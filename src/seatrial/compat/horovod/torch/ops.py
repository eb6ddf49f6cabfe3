"""Horovod's operations: each begins at once and returns a handle; the plain form waits for it.

All ranks begin the same operations in the same order. Horovod pairs them by name; here names are ignored.
"""

import itertools
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from .. import refuse
from . import joining
from .world import ProcessSet, global_process_set, world

__all__ = (
    *("Adasum", "Average", "Compression", "HorovodInternalError", "Max", "Min", "Product", "Sum", "allgather"),
    *("allgather_async", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall"),
    *("alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
    *("grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_"),
    *("grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter", "grouped_reducescatter_async"),
    *("join", "poll", "reducescatter", "reducescatter_async", "sparse_allreduce_async", "synchronize"),
)

Tensor = torch.Tensor

#: Horovod's numbers. Source: horovod/common/message.h on GitHub.
Average, Sum, Adasum, Min, Max, Product = 0, 1, 2, 3, 4, 5

_REDUCTIONS = {
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


class HorovodInternalError(RuntimeError):
    """An operation that failed, as scripts catch it."""


class NoneCompressor:
    """Send tensors as they are. A script may bring a compressor of its own with the same two methods."""

    @staticmethod
    def compress(tensor: Tensor) -> Tuple[Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor


class FP16Compressor:
    """Send floating-point numbers in half precision."""

    @staticmethod
    def compress(tensor: Tensor) -> Tuple[Tensor, Any]:
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        return tensor.to(ctx)


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor


class Handle:
    """Operations under way, and the function that makes their result."""

    def __init__(self, works: Sequence[Any], finish: Callable[[], Any]) -> None:
        self._works, self._finish = [work for work in works if work is not None], finish
        self._result: Any = None
        self._waited = False

    def is_completed(self) -> bool:
        return self._waited or all(work.is_completed() for work in self._works)

    def wait(self) -> Any:
        """Return the result. Raises HorovodInternalError."""
        if not self._waited:
            try:
                for work in self._works:
                    work.wait()
            except RuntimeError as error:
                raise HorovodInternalError(str(error)) from error
            self._waited = True
            self._result = self._finish()
            self._works = []
        return self._result


def poll(handle: Handle) -> bool:
    """Return True if ``synchronize`` would not have to wait."""
    return handle.is_completed()


def synchronize(handle: Any) -> Any:
    """Wait for an operation; return its result."""
    return handle() if callable(handle) else handle.wait()


def check_reduction(op: int) -> None:
    """Raise NotInStandIn for Adasum, ValueError for a number without a reduction."""
    if op == Adasum:
        refuse("hvd.Adasum", "op=hvd.Average, with the learning rate that suits it: seatrial run --gpus 2 train.py")
    if op != Average and op not in _REDUCTIONS:
        raise ValueError("%r is no reduction of Horovod's" % (op,))


def begin(kind: str, tensor: Tensor, process_set: ProcessSet, call: Callable[..., Any], *args: Any) -> Any:
    """Begin a collective of torch.distributed and return its work, or None if this rank is alone in the set."""
    if process_set.size() == 1 and process_set.included():
        return None
    if process_set is global_process_set:
        joining.announce(kind, tensor)
    return call(*args, group=process_set.group(tensor), async_op=True)


def begin_all_reduce(
    tensor: Tensor, op: int, process_set: ProcessSet = global_process_set, kind: str = "reduce"
) -> Any:
    """Begin a reduction in place, of a contiguous tensor. The caller divides for an average.

    Args:
        kind: ``agree-N`` (``take_result``) also gives the result to a rank that has joined.
    """
    return begin("%s-%d" % (kind, op), tensor, process_set, dist.all_reduce, tensor, _REDUCTIONS.get(op))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    work = begin_all_reduce(torch.zeros(1), Sum, process_set)
    if work is not None:
        work.wait()


#: Numbers are equal on all ranks, which make the same things in the same order.
_numbers = itertools.count()
_takers: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def take_result(taker: Any) -> str:
    """Return a kind of reduction whose result goes to ``taker.agreed`` if this rank has joined by then."""
    number = next(_numbers)
    _takers[number] = taker
    return "agree-%d" % number


def join(device: int = -1) -> int:
    """Take part with zeros until all ranks are out of data; return the number of the last rank that joined."""
    return 0 if world().size == 1 else joining.join(_take_part)


def _take_part(kind: str, zeros: Tensor) -> None:
    """Take part in one operation of the others, as a rank that has joined."""
    name, _, op = kind.partition("-")
    number, _, op = op.rpartition("-")
    if name not in ("reduce", "agree"):
        raise HorovodInternalError(
            "hvd.%s was called while rank %d had joined: only hvd.allreduce goes on then" % (name, world().rank)
        )
    dist.all_reduce(zeros, _REDUCTIONS[int(op)], group=global_process_set.group(zeros))
    taker = _takers.get(int(number)) if number else None
    if taker:
        taker.agreed(zeros.tolist())


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], tensor: Tensor) -> Any:
        ctx.back = back
        return there(tensor.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, ctx.back(gradient)


def _differentiable(there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return ``there(tensor)``, whose gradient goes through ``back``."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _Differentiable.apply(there, back, tensor)  # type: ignore[no-any-return, no-untyped-call]
    return there(tensor.detach())


def _chosen(op: Optional[int], average: Optional[bool]) -> int:
    if op is not None and average is not None:
        raise ValueError("hvd.allreduce takes op or average, not both")
    op = (Average if average or average is None else Sum) if op is None else op
    check_reduction(op)
    return op


def _scale(tensor: Tensor, factor: float) -> None:
    """Multiply in place; whole numbers are truncated."""
    if factor != 1.0:
        if tensor.is_floating_point() or tensor.is_complex():
            tensor.mul_(factor)
        else:
            tensor.copy_((tensor.double() * factor).trunc())


@torch.no_grad()
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
    inner = [each.detach() for each in tensors]
    buffers, works = [each.contiguous() for each in inner], []
    for buffer in buffers:
        _scale(buffer, prescale_factor)
        works.append(begin_all_reduce(buffer, Sum if op == Average else op, process_set))

    @torch.no_grad()
    def finish() -> List[Tensor]:
        count = process_set.size() or 1
        for output, buffer in zip(inner, buffers):
            if op == Average and count > 1:
                rounding = None if buffer.is_floating_point() or buffer.is_complex() else "trunc"
                buffer.copy_(torch.div(buffer, count, rounding_mode=rounding))
            _scale(buffer, postscale_factor)
            if buffer is not output:
                output.copy_(buffer)
        return list(tensors)

    return Handle(works, finish)


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    copies = [each.detach().clone(memory_format=torch.contiguous_format) for each in tensors]
    return grouped_allreduce_async_(copies, *args, **kwargs)


def grouped_allreduce_(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
    return synchronize(grouped_allreduce_async_(tensors, *args, **kwargs))


def grouped_allreduce(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> List[Tensor]:
    return [allreduce(each, *args, **kwargs) for each in tensors]


def allreduce_async_(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    handle = grouped_allreduce_async_([tensor], *args, **kwargs)
    return Handle([handle], lambda: handle.wait()[0])


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    handle = grouped_allreduce_async([tensor], *args, **kwargs)
    return Handle([handle], lambda: handle.wait()[0])


def allreduce_(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    return synchronize(allreduce_async_(tensor, *args, **kwargs))


def allreduce(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Average (or apply another ``op``) over the ranks; the gradient is reduced in the same way."""
    further = (None, name, _chosen(op, average), prescale_factor, postscale_factor, process_set)

    def reduced(each: Tensor) -> Any:
        return synchronize(allreduce_async(each, *further))

    compressed, ctx = compression.compress(tensor)
    return compression.decompress(_differentiable(reduced, reduced, compressed), ctx)


def _all_gather(tensor: Tensor, process_set: ProcessSet) -> Tuple[List[Tensor], Any]:
    """Return one tensor of each rank, all of one shape, and the work to wait for."""
    gathered = [torch.empty_like(tensor) for _ in range(process_set.size() or 1)]
    work = begin("allgather", tensor, process_set, dist.all_gather, gathered, tensor)
    return gathered if work is not None else [tensor.clone()], work


def _gathered_counts(counts: Sequence[int], process_set: ProcessSet) -> Tensor:
    """Return a row with each rank's numbers; all give equally many."""
    gathered, work = _all_gather(torch.tensor(counts, dtype=torch.int64), process_set)
    if work is not None:
        work.wait()
    return torch.stack(gathered)


def allgather_async(tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Concatenate the ranks' tensors; their first dimensions may differ."""
    rows = tensor.detach().contiguous().reshape(tensor.shape or (1,))
    counts = _gathered_counts([rows.shape[0]], process_set)[:, 0].tolist()
    most = max(counts)
    if rows.shape[0] < most:
        rows = torch.cat([rows, rows.new_zeros((most - rows.shape[0], *rows.shape[1:]))])
    gathered, work = _all_gather(rows, process_set)
    return Handle([work], lambda: torch.cat([each[:count] for each, count in zip(gathered, counts)]))


def allgather(tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """Gather; the gradient is the average of the ranks' gradients for this rank's rows."""
    rows = tensor.shape[0] if tensor.dim() else 1

    def back(gradient: Tensor) -> Any:
        averaged = allreduce(gradient, op=Average, process_set=process_set)
        counts = _gathered_counts([rows], process_set)[:, 0]
        start = int(counts[: process_set.rank() or 0].sum())
        return averaged.narrow(0, start, rows).reshape(tensor.shape)

    return _differentiable(lambda each: synchronize(allgather_async(each, name, process_set)), back, tensor)


def _each(handles: Sequence[Handle]) -> Handle:
    return Handle(handles, lambda: [each.wait() for each in handles])


def grouped_allgather_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    return _each([allgather_async(each, *args, **kwargs) for each in tensors])


def grouped_allgather(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> List[Tensor]:
    return [allgather(each, *args, **kwargs) for each in tensors]


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Copy the root's tensor; ``root_rank`` is its number in the world."""
    inner = tensor.detach()
    buffer = inner.contiguous()
    work = begin("broadcast", buffer, process_set, dist.broadcast, buffer, root_rank)

    def finished() -> Tensor:
        if buffer.data_ptr() != inner.data_ptr():
            with torch.no_grad():
                inner.copy_(buffer)
        return tensor

    return Handle([work], finished)


def broadcast_async(tensor: Tensor, root_rank: int, *args: Any, **kwargs: Any) -> Handle:
    return broadcast_async_(tensor.detach().clone(), root_rank, *args, **kwargs)


def broadcast_(tensor: Tensor, root_rank: int, *args: Any, **kwargs: Any) -> Any:
    return synchronize(broadcast_async_(tensor, root_rank, *args, **kwargs))


def broadcast(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Return the root's tensor; its gradient is the ranks' average, and that of the others is zero."""

    def back(gradient: Tensor) -> Tensor:
        averaged: Tensor = allreduce(gradient, op=Average, process_set=process_set)
        return averaged if world().rank == root_rank else torch.zeros_like(averaged)

    return _differentiable(lambda each: synchronize(broadcast_async(each, root_rank, name, process_set)), back, tensor)


def alltoall_async(
    tensor: Tensor,
    splits: Union[Tensor, Sequence[int], None] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Send rows to each rank, ``splits`` of them or equally many; with ``splits``, also return how many came."""
    count = process_set.size() or 1
    rows = tensor.detach().contiguous()
    sent = [int(each) for each in splits] if splits is not None else [rows.shape[0] // count] * count
    if len(sent) != count or sum(sent) != rows.shape[0]:
        raise ValueError("splits %s do not divide %d rows among %d ranks" % (sent, rows.shape[0], count))
    came = _gathered_counts(sent, process_set)[:, process_set.rank() or 0]
    received = rows.new_empty((int(came.sum()), *rows.shape[1:]))
    work = begin("alltoall", rows, process_set, dist.all_to_all_single, received, rows, came.tolist(), sent)
    received = rows.clone() if work is None else received
    return Handle([work], lambda: (received, came.to(torch.int32)) if splits is not None else received)


def alltoall(
    tensor: Tensor, splits: Any = None, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    came: List[Tensor] = []

    def exchanged(each: Tensor) -> Any:
        result = synchronize(alltoall_async(each, splits, name, process_set))
        if splits is None:
            return result
        came.append(result[1])
        return result[0]

    def back(gradient: Tensor) -> Any:
        if splits is None:
            return synchronize(alltoall_async(gradient, None, None, process_set))
        return synchronize(alltoall_async(gradient, came[0], None, process_set))[0]

    received = _differentiable(exchanged, back, tensor)
    return received if splits is None else (received, came[0])


def reducescatter_async(
    tensor: Tensor,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Reduce, and keep this rank's rows; the first ranks have one more if the rows cannot be divided equally."""
    if op not in (Average, Sum):
        raise NotImplementedError("hvd.reducescatter takes op=hvd.Average or op=hvd.Sum")
    whole = allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    mine = process_set.rank() or 0
    each, more = divmod(tensor.shape[0], process_set.size() or 1)
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
) -> Any:
    further = (name, op, process_set, prescale_factor, postscale_factor)

    def back(gradient: Tensor) -> Tensor:
        factor = prescale_factor * postscale_factor * ((process_set.size() or 1) if op == Sum else 1)
        return allgather(gradient * factor, process_set=process_set)

    compressed, ctx = compression.compress(tensor)
    scattered = _differentiable(lambda each: synchronize(reducescatter_async(each, *further)), back, compressed)
    return compression.decompress(scattered, ctx)


def grouped_reducescatter_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    return _each([reducescatter_async(each, *args, **kwargs) for each in tensors])


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> List[Tensor]:
    return [reducescatter(each, *args, **kwargs) for each in tensors]


def sparse_allreduce_async(
    tensor: Tensor, name: Optional[str] = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Return a function that waits and returns the sum of the ranks' sparse tensors, or their average."""
    check_reduction(op)
    tensor = tensor.coalesce()
    indices = allgather_async(tensor.indices().t().contiguous(), process_set=process_set)
    values = allgather_async(tensor.values(), process_set=process_set)

    def finished() -> Tensor:
        added, where = synchronize(values), synchronize(indices)
        added = added / (process_set.size() or 1) if op == Average else added
        return torch.sparse_coo_tensor(where.t(), added, tensor.size()).coalesce()

    return finished
