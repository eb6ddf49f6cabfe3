"""``DistributedOptimizer``: the script's optimizer, whose gradients are those of all ranks once it steps.

Gradients are reduced while the backward pass still runs, bucket by bucket. Buckets are DistributedDataParallel's, in
size, order and arithmetic, so that the sums are its sums to the bit: a gradient is multiplied by one over the number
of ranks, and then added up. At the end of the first step the ranks agree once on the order in which gradients become
ready. From the second step on, buckets are filled and reduced in that order on every rank.
Source: torch/csrc/distributed/c10d/reducer.cpp (torch 2.13), mark_variable_ready_dense and rebuild_buckets.
"""

import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from .. import refuse
from .operations import (
    Average,
    Compression,
    FP16Compressor,
    Max,
    NoneCompressor,
    Sum,
    begin_all_reduce,
    check_reduction,
)
from .world import size

#: DDP's sizes. Source: torch/csrc/distributed/c10d/reducer.hpp kDefaultFirstBucketBytes, kDefaultBucketBytesCap.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1024 * 1024, 25 * 1024 * 1024

#: A limit that no bucket reaches.
_ALL = float("inf")

Parameter = torch.Tensor


def assign(parameters: Sequence[Parameter], first_bytes: float, others_bytes: float) -> List[List[Parameter]]:
    """Divide parameters into buckets of one type and device, in the order in which they were full or left over."""
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
    """The arguments of DistributedOptimizer that decide how gradients are reduced."""

    def __init__(self, op: int, compression: Any, predivide_factor: float) -> None:
        self.op, self.halves = op, compression is FP16Compressor
        self.before = self.after = 1.0
        if op == Average:
            self.before = 1.0 / size() if predivide_factor == 1.0 else 1.0 / predivide_factor
            self.after = 1.0 if predivide_factor == 1.0 else predivide_factor / size()


class Bucket:
    """Some parameters' gradients, reduced in one operation."""

    def __init__(self, parameters: List[Parameter], reduction: Reduction) -> None:
        self.parameters, self._reduction = parameters, reduction
        self.missing = len(parameters)
        self._buffer: Optional[torch.Tensor] = None
        self._views: List[torch.Tensor] = []
        self._work: Any = None

    def begin(self) -> None:
        """Begin to reduce copies of the gradients."""
        reduction = self._reduction
        if self._buffer is None:
            first = self.parameters[0]
            dtype = torch.float16 if reduction.halves and first.dtype.is_floating_point else first.dtype
            counts = [each.numel() for each in self.parameters]
            self._buffer = torch.empty(sum(counts), dtype=dtype, device=first.device)
            parts = torch.split(self._buffer, counts)
            self._views = [part.view(each.shape) for part, each in zip(parts, self.parameters)]
        _copy(self._views, self._gradients())
        if reduction.before != 1.0:
            self._buffer.mul_(reduction.before)
        self._work = begin_all_reduce(self._buffer, Sum if reduction.op == Average else reduction.op)

    def end(self) -> None:
        """Wait, and copy the results into the gradients."""
        if self._work is not None:
            self._work.wait()
        if self._buffer is not None:
            if self._reduction.after != 1.0:
                self._buffer.mul_(self._reduction.after)
            _copy(self._gradients(), self._views)
        self._work = None
        self.missing = len(self.parameters)

    def _gradients(self) -> List[Any]:
        return [each.grad for each in self.parameters]


def _copy(there: List[torch.Tensor], here: List[torch.Tensor]) -> None:
    """Copy many small tensors by few kernels, where torch has that."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(there, here)
    else:
        for target, source in zip(there, here):
            target.copy_(source)


class Reducer:
    """Hooks on parameters, and the buckets that they fill; ``busy`` from the first ready gradient until ``finish``."""

    def __init__(self, reduction: Reduction, passes: int, *, sparse_as_dense: bool) -> None:
        self._reduction, self._passes, self._sparse_as_dense = reduction, passes, sparse_as_dense
        self.busy = False
        self._left: Dict[Parameter, int] = {}  # parameter → backward passes until its gradient is ready
        self._ready: List[Parameter] = []
        self._late: List[Parameter] = []
        self._buckets: Optional[List[Bucket]] = None
        self._bucket_of: Dict[Parameter, Bucket] = {}
        self._begun = 0
        self._kept: List[Any] = []  # gradient accumulators live as long as they are referenced
        self._lock = threading.Lock()

    def take(self, parameters: Sequence[Parameter]) -> None:
        """Reduce these parameters' gradients from now on. Known ones are skipped."""
        new = [each for each in parameters if each.requires_grad and each not in self._left]
        for each in new:
            self._left[each] = self._passes
            self._hook(each)
        if self._buckets is not None:
            self._late += new  # their hooks begin with the next pass

    def forget(self, passes: int) -> None:
        """Discard the passes since the last step; from now on ``passes`` are a step."""
        self._passes = passes
        self._left = dict.fromkeys(self._left, passes)
        if not self._begun:
            self._ready, self.busy = [], False
            for bucket in self._buckets or ():
                bucket.missing = len(bucket.parameters)

    def finish(self) -> None:
        """Reduce the rest, wait for all, and leave the results in the gradients."""
        with torch.no_grad():
            for each in self._left:
                if each.grad is None:  # another rank may have one
                    each.grad = torch.zeros_like(each, memory_format=torch.preserve_format)
                self._make_dense(each)
            agreed = self._buckets is not None
            buckets = list(self._buckets or [])
            if not agreed:  # the first step's are as DDP's: all gradients of a type in one
                buckets = [Bucket(members, self._reduction) for members in reversed(assign([*self._left], _ALL, _ALL))]
                order = self._agree()
            buckets += [Bucket(members, self._reduction) for members in assign(self._late, _ALL, _ALL)]
            for bucket in buckets[self._begun :]:
                bucket.begin()
            for bucket in buckets:
                bucket.end()
        if not agreed:
            parts = assign(order, FIRST_BUCKET_BYTES, BUCKET_BYTES)
            self._buckets = [Bucket(members, self._reduction) for members in parts]
            self._bucket_of = {each: bucket for bucket in self._buckets for each in bucket.parameters}
        if self._late:
            self._late, self._buckets = [], None
        self._begun, self._ready, self.busy = 0, [], False
        self._left = dict.fromkeys(self._left, self._passes)

    def _hook(self, parameter: Parameter) -> None:
        def ready(*_: Any) -> None:
            self._came(parameter)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1 and later
            self._kept.append(parameter.register_post_accumulate_grad_hook(ready))  # type: ignore[no-untyped-call]
        else:
            accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
            accumulator.register_hook(ready)  # type: ignore[union-attr]
            self._kept.append(accumulator)

    def _came(self, parameter: Parameter) -> None:
        """Count a pass that left its gradient; begin the buckets that are full."""
        with self._lock:
            self.busy = True
            left = self._left[parameter] = self._left[parameter] - 1
            if left < 0:
                raise AssertionError(
                    "more backward passes than backward_passes_per_step=%d before optimizer.step(): "
                    "hvd.DistributedOptimizer(…, backward_passes_per_step=N) is for N passes a step" % self._passes
                )
            if left > 0:
                return
            self._ready.append(parameter)
            bucket = self._bucket_of.get(parameter) if self._buckets is not None else None
            if bucket is None or self._buckets is None:
                return
            bucket.missing -= 1
            with torch.no_grad():
                self._make_dense(parameter)
                while self._begun < len(self._buckets) and self._buckets[self._begun].missing == 0:
                    self._buckets[self._begun].begin()
                    self._begun += 1

    def _make_dense(self, parameter: Parameter) -> None:
        if parameter.grad is not None and parameter.grad.is_sparse:
            if not self._sparse_as_dense:
                instead = "nn.Embedding(…, sparse=False), or hvd.DistributedOptimizer(…, sparse_as_dense=True)"
                refuse("the sum of sparse gradients", instead + ": seatrial run --gpus 2 train.py")
            parameter.grad = parameter.grad.to_dense()

    def _agree(self) -> List[Parameter]:
        """Return the parameters in an order of all ranks: by the latest place of a gradient on any rank."""
        places = {each: place for place, each in enumerate(self._ready, 1)}
        parameters = list(self._left)
        agreed = torch.tensor([places.get(each, len(parameters) + 1) for each in parameters], dtype=torch.int64)
        work = begin_all_reduce(agreed, Max)
        if work is not None:
            work.wait()
        numbers = agreed.tolist()
        return [parameters[number] for number in sorted(range(len(numbers)), key=lambda at: (numbers[at], at))]


class _Distributed:
    """Mixed into the optimizer's own class, so that schedulers and scalers still accept it."""

    _reducer: Optional[Reducer]
    _synchronizes: bool
    backward_passes_per_step: int
    param_groups: List[Any]

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks, before ``step``."""
        if self._reducer is not None:
            self._reducer.take([each for group in self.param_groups for each in group["params"]])
            self._reducer.finish()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let ``step`` take the gradients as they are, after ``synchronize``."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, *args: Any, **kwargs: Any) -> Any:
        if self._synchronizes:
            self.synchronize()
        return super().step(*args, **kwargs)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> Any:
        """Raise AssertionError while gradients are on their way."""
        if self._reducer is not None and self._reducer.busy:
            raise AssertionError(
                "optimizer.zero_grad() between loss.backward() and optimizer.step() or optimizer.synchronize(): "
                "the gradients are on their way to the other ranks"
            )
        return super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self._reducer is not None:
            self._reducer.forget(self.backward_passes_per_step)
        self._synchronizes = True
        return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.forget(passes)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    sparse_as_dense: bool = False,
    **more: Any,
) -> torch.optim.Optimizer:
    """Return the optimizer, of its own class, that averages gradients over the ranks before it steps.

    Raises NotInStandIn for ``op=hvd.Adasum``, groups, process sets and a compressor of the script's own.
    """
    if more or compression not in (NoneCompressor, FP16Compressor):
        part = "hvd.DistributedOptimizer(…, %s=…)" % (sorted(more) or ["compression"])[0]
        refuse(part, "the same call without it: seatrial run --gpus 2 train.py")
    check_reduction(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=hvd.Average")
    made: Any = object.__new__(type(type(optimizer).__name__, (_Distributed, type(optimizer)), {}))
    # A scheduler leaves a `step` of its own on the optimizer that it was given: that one would not reduce.
    made.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")})
    made.op, made.backward_passes_per_step = op, backward_passes_per_step
    made._synchronizes, made._reducer = True, None
    if size() > 1:
        reduction = Reduction(op, compression, gradient_predivide_factor)
        made._reducer = Reducer(reduction, backward_passes_per_step, sparse_as_dense=sparse_as_dense)
        made._reducer.take([each for group in made.param_groups for each in group["params"]])
    return made  # type: ignore[no-any-return]
