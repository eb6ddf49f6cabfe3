"""What ranks do together, on torch.distributed: each begins at once and returns its work to wait for.

All ranks begin the same operations in the same order. Horovod pairs them by name; here names are of no account.
"""

import itertools
import weakref
from typing import Any, Callable, List, Optional, Sequence

import torch
import torch.distributed as dist

from ..refused import refuse
from . import joining
from .process_sets import ProcessSet, global_process_set
from .world import world

#: By Horovod's numbers. Source: horovod/common/message.h on GitHub.
Average, Sum, Adasum, Min, Max, Product = 0, 1, 2, 3, 4, 5

_REDUCTIONS = {
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


#: Equal on all ranks, which make the same things in the same order.
_numbers = itertools.count()
_takers: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


class HorovodInternalError(RuntimeError):
    """An operation that failed, as scripts catch it."""


class Handle:
    """Operations under way, and what becomes of their results."""

    def __init__(self, works: Sequence[Any], finish: Callable[[], Any]) -> None:
        self._works, self._finish = [work for work in works if work is not None], finish
        self._result: Any = None
        self._waited = False

    def is_completed(self) -> bool:
        return self._waited or all(work.is_completed() for work in self._works)

    def wait(self) -> Any:
        """Raises HorovodInternalError."""
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
    """Whether ``synchronize`` would not have to wait."""
    return handle.is_completed()


def synchronize(handle: Any) -> Any:
    """Wait for an operation; its result."""
    return handle() if callable(handle) else handle.wait()


def check_reduction(op: int) -> None:
    """Raises NotInStandIn, or ValueError for what is no reduction."""
    if op == Adasum:
        refuse("hvd.Adasum", "op=hvd.Average, with the learning rate that suits it: seatrial run --gpus 2 train.py")
    if op != Average and op not in _REDUCTIONS:
        raise ValueError("%r is no reduction of Horovod's" % (op,))


def begin_all_reduce(
    tensor: torch.Tensor, op: int, process_set: ProcessSet = global_process_set, told_as: str = "reduce"
) -> Any:
    """In place, on a contiguous tensor. Average is the caller's to divide.

    Args:
        told_as: what a rank that has joined learns of it; ``agree-N`` gives it the result, too (``take_result``).
    """
    if _alone(process_set):
        return None
    if process_set is global_process_set:
        joining.tell("%s-%d" % (told_as, op), tensor)
    return dist.all_reduce(tensor, _REDUCTIONS[op], group=process_set.group(tensor), async_op=True)


def begin_broadcast(tensor: torch.Tensor, root_rank: int, process_set: ProcessSet = global_process_set) -> Any:
    """In place, on a contiguous tensor; the root by its number in the world."""
    if _alone(process_set):
        return None
    _tell("broadcast", tensor, process_set)
    return dist.broadcast(tensor, root_rank, group=process_set.group(tensor), async_op=True)


def begin_all_gather(tensor: torch.Tensor, process_set: ProcessSet = global_process_set) -> "tuple[List[Any], Any]":
    """(one tensor of each rank, work); all are of one shape."""
    if _alone(process_set):
        return [tensor.clone()], None
    _tell("allgather", tensor, process_set)
    gathered = [torch.empty_like(tensor) for _ in range(process_set.size() or 1)]
    return gathered, dist.all_gather(gathered, tensor, group=process_set.group(tensor), async_op=True)


def begin_all_to_all(
    received: torch.Tensor,
    tensor: torch.Tensor,
    received_splits: List[int],
    splits: List[int],
    process_set: ProcessSet,
) -> Any:
    """Rows for each rank, into rows from each."""
    if _alone(process_set):
        received.copy_(tensor)
        return None
    _tell("alltoall", tensor, process_set)
    group = process_set.group(tensor)
    return dist.all_to_all_single(received, tensor, received_splits, splits, group=group, async_op=True)


def wait_for_all(process_set: ProcessSet) -> None:
    """A barrier."""
    if not _alone(process_set):
        begin_all_reduce(torch.zeros(1), Sum, process_set).wait()


def join_others() -> int:
    """See joining.py."""
    return joining.join(_take_part)


def _take_part(kind: str, zeros: torch.Tensor) -> None:
    """One operation of the others, for a rank that has joined."""
    name, _, op = kind.partition("-")
    number, _, op = op.rpartition("-")
    if name not in ("reduce", "agree"):
        raise HorovodInternalError(
            "hvd.%s was called while rank %d had joined: only hvd.allreduce goes on then" % (name, world().rank)
        )
    dist.all_reduce(zeros, _REDUCTIONS[int(op)], group=global_process_set.group(zeros))
    if number and (taker := _takers.get(int(number))):
        taker.agreed(zeros.tolist())


def take_result(taker: Any) -> str:
    """Have ``taker.agreed`` called with what the others agree on, while this rank has joined; what they tell it as."""
    number = next(_numbers)
    _takers[number] = taker
    return "agree-%d" % number


def _tell(kind: str, tensor: torch.Tensor, process_set: ProcessSet) -> None:
    if process_set is global_process_set:
        joining.tell(kind, tensor)


def _alone(process_set: ProcessSet) -> bool:
    size: Optional[int] = process_set.size()
    return size == 1 and process_set.included()
