"""Gradients that travel together: which, in which order, and each bucket's way there and back.

Buckets are those of DistributedDataParallel, in size, order and arithmetic, so that the sums are its sums to the bit: a
gradient is multiplied by one over the number of ranks, and then added up.
Source: torch/csrc/distributed/c10d/reducer.cpp (torch 2.13), mark_variable_ready_dense and rebuild_buckets.
"""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .compression import FP16Compressor, NoneCompressor
from .operations import Average, Sum, begin_all_reduce
from .process_sets import ProcessSet

#: DDP's. Source: torch/csrc/distributed/c10d/reducer.hpp kDefaultFirstBucketBytes, kDefaultBucketBytesCap.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1024 * 1024, 25 * 1024 * 1024

Parameter = torch.Tensor


def assign(parameters: Sequence[Parameter], first_bytes: float, others_bytes: float) -> List[List[Parameter]]:
    """Parameters in buckets, each of one type and device, in the order in which the buckets were full or left over."""
    open_buckets: Dict[Any, Tuple[List[Parameter], int]] = {}
    limits: Dict[Any, float] = {}
    full: List[List[Parameter]] = []
    for each in parameters:
        kind = (each.dtype, each.device)
        members, size_bytes = open_buckets.pop(kind, ([], 0))
        members.append(each)
        size_bytes += each.numel() * each.element_size()
        if size_bytes >= limits.get(kind, first_bytes):
            full.append(members)
            limits[kind] = others_bytes
        else:
            open_buckets[kind] = (members, size_bytes)
    return full + [members for members, _ in open_buckets.values()]


class Reduction:
    """How gradients are reduced; the arguments of DistributedOptimizer."""

    def __init__(self, op: int, compression: Any, predivide_factor: float, process_set: ProcessSet) -> None:
        self.op, self.compression, self.process_set = op, compression, process_set
        self.own_compressor = compression not in (NoneCompressor, FP16Compressor)
        count = process_set.size() or 1
        self.before = self.after = 1.0
        if op == Average:
            self.before = 1.0 / count if predivide_factor == 1.0 else 1.0 / predivide_factor
            self.after = 1.0 if predivide_factor == 1.0 else predivide_factor / count

    def type_of(self, dtype: torch.dtype) -> torch.dtype:
        """What such gradients are sent as."""
        return torch.float16 if self.compression is FP16Compressor and dtype.is_floating_point else dtype

    @property
    def sum_op(self) -> int:
        return Sum if self.op == Average else self.op


class Bucket:
    """Some parameters' gradients, reduced in one operation."""

    def __init__(self, parameters: List[Parameter], reduction: Reduction) -> None:
        self.parameters, self._reduction = parameters, reduction
        self.missing = len(parameters)
        self._buffer: Optional[torch.Tensor] = None
        self._views: List[torch.Tensor] = []
        self._works: List[Any] = []
        self._sent: List[Tuple[torch.Tensor, Any]] = []

    def begin(self, gradients: List[torch.Tensor]) -> None:
        """Send copies of the gradients on their way."""
        reduction = self._reduction
        if reduction.own_compressor:
            self._begin_each(gradients)
            return
        if self._buffer is None:
            self._make_buffer()
        assert self._buffer is not None
        _copy(self._views, gradients)
        if reduction.before != 1.0:
            self._buffer.mul_(reduction.before)
        self._works = [begin_all_reduce(self._buffer, reduction.sum_op, reduction.process_set)]

    def end(self, gradients: List[torch.Tensor]) -> None:
        """Wait for them, and put what came into the gradients."""
        for work in self._works:
            if work is not None:
                work.wait()
        after = self._reduction.after
        if self._reduction.own_compressor:
            for gradient, (sent, ctx) in zip(gradients, self._sent):
                gradient.copy_(self._reduction.compression.decompress(sent.mul_(after), ctx))
        elif self._buffer is not None:
            if after != 1.0:
                self._buffer.mul_(after)
            _copy(gradients, self._views)
        self._works, self._sent = [], []
        self.missing = len(self.parameters)

    def _make_buffer(self) -> None:
        first = self.parameters[0]
        count = sum(each.numel() for each in self.parameters)
        self._buffer = torch.empty(count, dtype=self._reduction.type_of(first.dtype), device=first.device)
        at = 0
        for each in self.parameters:
            self._views.append(self._buffer[at : at + each.numel()].view(each.shape))
            at += each.numel()

    def _begin_each(self, gradients: List[torch.Tensor]) -> None:
        """With a compressor of the script's own, which knows tensors and no buckets."""
        for gradient in gradients:
            sent, ctx = self._reduction.compression.compress(gradient.clone())
            sent = sent.contiguous().mul_(self._reduction.before)
            self._sent.append((sent, ctx))
            self._works.append(begin_all_reduce(sent, self._reduction.sum_op, self._reduction.process_set))


def _copy(there: List[torch.Tensor], here: List[torch.Tensor]) -> None:
    """Many small copies as few kernels, where torch has that."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(there, here)
    else:
        for target, source in zip(there, here):
            target.copy_(source)
