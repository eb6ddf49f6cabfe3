"""Horovod's operations: each begins at once and returns a handle; the plain form waits for it.

All ranks begin the same operations in the same order. Horovod pairs them by name; here names are ignored.
"""

import io
import pickle
from typing import Any, Callable, Iterable, List, Mapping, Optional, Tuple, Union

import torch
import torch.distributed as dist
import torch.nn.functional as functional

from .. import refuse
from .world import rank, size, world

__all__ = (
    *("Adasum", "Average", "Compression", "HorovodInternalError", "Max", "Min", "Product", "Sum", "SyncBatchNorm"),
    *("allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async"),
    *("allreduce_async_", "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
    *("broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "poll", "synchronize"),
)

Tensor = torch.Tensor

#: Horovod's numbers. Source: horovod/common/message.h on GitHub.
Average, Sum, Adasum, Min, Max, Product = 0, 1, 2, 3, 4, 5

_REDUCTIONS = {Sum: dist.ReduceOp.SUM, Min: dist.ReduceOp.MIN, Max: dist.ReduceOp.MAX, Product: dist.ReduceOp.PRODUCT}


class HorovodInternalError(RuntimeError):
    """An operation that failed, as scripts catch it."""


class NoneCompressor:
    """Send tensors as they are."""

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


class OperationHandle:
    """An operation under way, and the function that makes its result."""

    def __init__(self, work: Any, finish: Callable[[], Any]) -> None:
        self._work, self._finish = work, finish
        self._result: Any = None
        self._waited = False

    def is_completed(self) -> bool:
        return self._waited or self._work is None or bool(self._work.is_completed())

    def wait(self) -> Any:
        """Return the result. Raises HorovodInternalError."""
        if not self._waited:
            try:
                if self._work is not None:
                    self._work.wait()
            except RuntimeError as error:
                raise HorovodInternalError(str(error)) from error
            self._waited, self._work = True, None
            self._result = self._finish()
        return self._result


def poll(handle: OperationHandle) -> bool:
    """Return True if ``synchronize`` would not have to wait."""
    return handle.is_completed()


def synchronize(handle: OperationHandle) -> Any:
    """Wait for an operation; return its result."""
    return handle.wait()


def check_reduction(op: int) -> None:
    """Raise NotInStandIn for Adasum, ValueError for a number without a reduction."""
    if op == Adasum:
        refuse("hvd.Adasum", "op=hvd.Average, with the learning rate that suits it: seatrial run --gpus 2 train.py")
    if op != Average and op not in _REDUCTIONS:
        raise ValueError("%r is not a reduction of Horovod's" % (op,))


def begin(tensor: Tensor, call: Callable[..., Any], *args: Any) -> Any:
    """Begin a collective of torch.distributed and return its work, or None if this rank is alone."""
    return None if size() == 1 else call(*args, group=world().group(tensor), async_op=True)


def begin_all_reduce(tensor: Tensor, op: int) -> Any:
    """Begin a reduction in place, of a contiguous tensor. The caller divides for an average."""
    return begin(tensor, dist.all_reduce, tensor, _REDUCTIONS[op])


def barrier() -> None:
    OperationHandle(begin_all_reduce(torch.zeros(1), Sum), lambda: None).wait()


def _chosen(op: Optional[int], average: Optional[bool]) -> int:
    if op is not None and average is not None:
        raise ValueError("hvd.allreduce takes op or average, not both")
    op = (Average if average or average is None else Sum) if op is None else op
    check_reduction(op)
    return op


@torch.no_grad()
def allreduce_async_(
    tensor: Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[int] = None
) -> OperationHandle:
    op = _chosen(op, average)
    inner = tensor.detach()
    buffer = inner.contiguous()
    work = begin_all_reduce(buffer, Sum if op == Average else op)

    @torch.no_grad()
    def finish() -> Tensor:
        if op == Average and size() > 1:
            rounding = None if buffer.is_floating_point() or buffer.is_complex() else "trunc"
            buffer.copy_(torch.div(buffer, size(), rounding_mode=rounding))
        if buffer is not inner:
            inner.copy_(buffer)
        return tensor

    return OperationHandle(work, finish)


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> OperationHandle:
    return allreduce_async_(tensor.detach().clone(memory_format=torch.contiguous_format), *args, **kwargs)


def allreduce(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[int] = None,
) -> Any:
    """Average (or apply another ``op``) over the ranks."""
    compressed, ctx = compression.compress(_without_gradient(tensor, "hvd.allreduce"))
    return compression.decompress(synchronize(allreduce_async(compressed, None, name, _chosen(op, average))), ctx)


def _without_gradient(tensor: Tensor, name: str) -> Tensor:
    """Return the tensor detached. Raises NotInStandIn where its gradient would be lost."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        refuse("the gradient of " + name, "tensor.detach(), or torch.distributed.nn: seatrial run --gpus 2 train.py")
    return tensor.detach()


def allgather_async(tensor: Tensor, name: Optional[str] = None) -> OperationHandle:
    """Concatenate the ranks' tensors; their first dimensions may differ."""
    rows = _without_gradient(tensor, "hvd.allgather").contiguous().reshape(tensor.shape or (1,))
    count = torch.tensor([rows.shape[0]])
    counts = [torch.empty_like(count) for _ in range(size())] if size() > 1 else [count]
    OperationHandle(begin(count, dist.all_gather, counts, count), lambda: None).wait()
    most = max(int(each) for each in counts)
    if rows.shape[0] < most:
        rows = torch.cat([rows, rows.new_zeros((most - rows.shape[0], *rows.shape[1:]))])
    gathered = [torch.empty_like(rows) for _ in range(size())] if size() > 1 else [rows.clone()]
    work = begin(rows, dist.all_gather, gathered, rows)
    return OperationHandle(work, lambda: torch.cat([each[: int(count)] for each, count in zip(gathered, counts)]))


def broadcast_async_(tensor: Tensor, root_rank: int, name: Optional[str] = None) -> OperationHandle:
    """Copy the root's tensor to all ranks."""
    inner = tensor.detach()
    buffer = inner.contiguous()
    work = begin(buffer, dist.broadcast, buffer, root_rank)

    def finished() -> Tensor:
        if buffer.data_ptr() != inner.data_ptr():
            with torch.no_grad():
                inner.copy_(buffer)
        return tensor

    return OperationHandle(work, finished)


def broadcast_async(tensor: Tensor, root_rank: int, name: Optional[str] = None) -> OperationHandle:
    return broadcast_async_(_without_gradient(tensor, "hvd.broadcast").clone(), root_rank, name)


def _waiting(begin: Callable[..., OperationHandle]) -> Callable[..., Any]:
    """Return the synchronous form of an operation, which waits for its result."""
    return lambda *args, **kwargs: begin(*args, **kwargs).wait()


allreduce_, allgather = _waiting(allreduce_async_), _waiting(allgather_async)
broadcast_, broadcast = _waiting(broadcast_async_), _waiting(broadcast_async)


def broadcast_parameters(params: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]], root_rank: int) -> None:
    """Copy the root's ``state_dict()`` or ``named_parameters()`` to all ranks, tensors only. Raises ValueError."""
    try:
        pairs = sorted(params.items()) if isinstance(params, Mapping) else [(name, each) for name, each in params]
    except (TypeError, ValueError):
        raise ValueError("broadcast_parameters takes a state_dict or pairs of a name and a tensor") from None
    for handle in [broadcast_async_(each, root_rank) for _, each in pairs if torch.is_tensor(each)]:
        synchronize(handle)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Copy the root's state and settings (learning rate …) to all ranks' optimizers. Raises ValueError for LBFGS."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast")
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """Return the root's object on every rank; its tensors arrive on the CPU."""
    data = _bytes(obj) if rank() == root_rank else torch.empty(0, dtype=torch.uint8)
    length = int(broadcast_(torch.tensor([data.numel()]), root_rank))
    data = data if rank() == root_rank else torch.empty(length, dtype=torch.uint8)
    broadcast_(data, root_rank)
    return obj if rank() == root_rank else _object(data)


def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """Return the ranks' objects, in their order."""
    data = _bytes(obj)
    sizes = allgather(torch.tensor([data.numel()])).tolist()
    return [_object(each) for each in torch.split(allgather(data), sizes)]


def _bytes(obj: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(obj, buffer, pickle_module=pickle)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _object(data: Tensor) -> Any:
    options = {"weights_only": False} if hasattr(torch.serialization, "add_safe_globals") else {}
    return torch.load(io.BytesIO(data.numpy().tobytes()), map_location="cpu", **options)


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """Normalise over the batches of all ranks: torch's layer on GPUs; on a CPU, where it does not run, the same."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` (N, C, …) over the batches of all ranks."""
        of_batch = self.training or not self.track_running_stats
        if size() > 1 and of_batch and input.is_cuda:
            self.process_group = world().group(input)
            try:
                return super().forward(input)
            finally:
                self.process_group = None  # a model is pickled without it
        momentum = self.momentum or 0.0
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        if size() == 1 or not of_batch:
            mean, variance = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
            return functional.batch_norm(input, mean, variance, self.weight, self.bias, of_batch, momentum, self.eps)
        return self._over_ranks(input, momentum)

    def _over_ranks(self, input: Tensor, momentum: float) -> Tensor:
        others, shape = [0, *range(2, input.dim())], [1, -1] + [1] * (input.dim() - 2)
        count = allreduce(torch.tensor([float(input.numel() // input.shape[1])]), op=Sum).item()
        total: Any = _Sum.apply
        mean = total(input.sum(others)) / count
        apart = input - mean.view(shape)
        variance = total((apart * apart).sum(others)) / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), momentum)
                self.running_var.lerp_((variance * (count / max(1.0, count - 1))).to(self.running_var), momentum)
        result: Tensor = apart * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result


class _Sum(torch.autograd.Function):
    """Sum over the ranks, gradients as well. It keeps no process group, which would outlive the group's end."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Any:
        return allreduce(tensor.detach(), op=Sum)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return allreduce(gradient, op=Sum)
