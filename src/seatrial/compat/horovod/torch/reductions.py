"""allreduce in all its forms."""

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from .compression import Compression
from .differentiable import Tensor, differentiable
from .operations import Average, Handle, Sum, begin_all_reduce, check_reduction, synchronize
from .process_sets import ProcessSet, global_process_set


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
