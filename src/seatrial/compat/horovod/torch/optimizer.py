"""``DistributedOptimizer``: the script's optimizer, whose gradients are those of all ranks once it steps.

Gradients are reduced while the backward pass still runs, bucket by bucket. Buckets are DistributedDataParallel's, in
size, order and arithmetic, so that the sums are its sums to the bit: a gradient is multiplied by one over the number
of ranks, and then added up. At the end of the first step the ranks agree once on the order in which gradients become
ready, and which are sparse. From the second step on, buckets are filled and reduced in that order on every rank.
Source: torch/csrc/distributed/c10d/reducer.cpp (torch 2.13), mark_variable_ready_dense and rebuild_buckets.
"""

import threading
import warnings
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch

from .ops import (
    Average,
    Compression,
    FP16Compressor,
    Max,
    NoneCompressor,
    Sum,
    begin_all_reduce,
    check_reduction,
    sparse_allreduce_async,
    take_result,
)
from .world import ProcessSet, global_process_set

#: DDP's sizes. Source: torch/csrc/distributed/c10d/reducer.hpp kDefaultFirstBucketBytes, kDefaultBucketBytesCap.
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1024 * 1024, 25 * 1024 * 1024

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

    def __init__(self, op: int, compression: Any, predivide_factor: float, process_set: ProcessSet) -> None:
        self.op, self.compression, self.process_set = op, compression, process_set
        self.own_compressor = compression not in (NoneCompressor, FP16Compressor)
        count = process_set.size() or 1
        self.before = self.after = 1.0
        if op == Average:
            self.before = 1.0 / count if predivide_factor == 1.0 else 1.0 / predivide_factor
            self.after = 1.0 if predivide_factor == 1.0 else predivide_factor / count

    def begin(self, tensor: torch.Tensor) -> Any:
        """Scale a tensor and begin its reduction."""
        if self.before != 1.0:
            tensor.mul_(self.before)
        return begin_all_reduce(tensor, Sum if self.op == Average else self.op, self.process_set)


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
        """Begin to reduce copies of the gradients."""
        reduction = self._reduction
        if reduction.own_compressor:
            self._begin_each(gradients)
            return
        if self._buffer is None:
            self._make_buffer()
        assert self._buffer is not None
        _copy(self._views, gradients)
        self._works = [reduction.begin(self._buffer)]

    def end(self, gradients: List[torch.Tensor]) -> None:
        """Wait, and copy the results into the gradients."""
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
        halves = self._reduction.compression is FP16Compressor and first.dtype.is_floating_point
        self._buffer = torch.empty(count, dtype=torch.float16 if halves else first.dtype, device=first.device)
        at = 0
        for each in self.parameters:
            self._views.append(self._buffer[at : at + each.numel()].view(each.shape))
            at += each.numel()

    def _begin_each(self, gradients: List[torch.Tensor]) -> None:
        """Reduce each gradient alone, by the script's own compressor, which takes tensors and no buckets."""
        for gradient in gradients:
            sent, ctx = self._reduction.compression.compress(gradient.clone())
            sent = sent.contiguous()
            self._sent.append((sent, ctx))
            self._works.append(self._reduction.begin(sent))


def _copy(there: List[torch.Tensor], here: List[torch.Tensor]) -> None:
    """Many small copies as few kernels, where torch has that."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(there, here)
    else:
        for target, source in zip(there, here):
            target.copy_(source)


#: A limit that no bucket reaches.
_ALL = float("inf")

Groups = Union[int, Sequence[Sequence[Parameter]], None]


class Reducer:
    """Hooks on parameters, and the buckets that they fill.

    Attributes:
        busy: gradients have become ready since the last ``finish``.
    """

    def __init__(self, reduction: Reduction, passes: int, groups: Groups, *, sparse_as_dense: bool) -> None:
        self._reduction, self._groups, self._sparse_as_dense = reduction, groups, sparse_as_dense
        self.passes = passes
        self.busy = False
        self._parameters: List[Parameter] = []
        self._left: Dict[Parameter, int] = {}
        self._ready: List[Parameter] = []
        self._sparse: List[Parameter] = []
        self._order: List[Parameter] = []
        self._late: List[Parameter] = []
        self._buckets: Optional[List[Bucket]] = None
        self._bucket_of: Dict[Parameter, Bucket] = {}
        self._begun = 0
        self._kept: List[Any] = []  # gradient accumulators live as long as they are referenced
        self._lock = threading.Lock()
        self._kind = take_result(self)

    def take(self, parameters: Sequence[Parameter]) -> None:
        """Reduce these parameters' gradients from now on. Known ones are skipped."""
        new = [each for each in parameters if each.requires_grad and each not in self._left]
        for each in new:
            self._parameters.append(each)
            self._left[each] = self.passes
            self._hook(each)
        if self._buckets is not None:
            self._late += new  # their hooks begin with the next pass

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        self.forget()

    def forget(self) -> None:
        """Discard the passes since the last step."""
        self._left = dict.fromkeys(self._parameters, self.passes)
        if not self._begun:
            self._ready, self.busy = [], False
            for bucket in self._buckets or ():
                bucket.missing = len(bucket.parameters)

    def finish(self) -> None:
        """Reduce the rest, wait for all, and leave the results in the gradients."""
        with torch.no_grad():
            for each in self._parameters:
                if each.grad is None:  # another rank may have one
                    each.grad = torch.zeros_like(each, memory_format=torch.preserve_format)
            agreed = self._buckets is not None
            buckets = list(self._buckets) if self._buckets is not None else self._agree()
            buckets += [Bucket(members, self._reduction) for members in assign(self._late, _ALL, _ALL)]
            while self._begun < len(buckets):
                self._begin(buckets)
            sparse = [(each, self._begin_sparse(each)) for each in self._sparse]
            for bucket in buckets:
                bucket.end([self._dense(each) for each in bucket.parameters])
            for each, finished in sparse:
                each.grad = finished()
        if not agreed:
            self._rebuild()
        if self._late:
            self._late, self._buckets = [], None
        self._begun, self._ready, self.busy = 0, [], False
        self._left = dict.fromkeys(self._parameters, self.passes)

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
                    "hvd.DistributedOptimizer(…, backward_passes_per_step=N) is for N passes a step" % self.passes
                )
            if left > 0:
                return
            self._ready.append(parameter)
            if self._buckets is None:
                return
            bucket = self._bucket_of.get(parameter)
            if bucket is not None:
                bucket.missing -= 1
            with torch.no_grad():
                while self._begun < len(self._buckets) and self._buckets[self._begun].missing == 0:
                    self._begin(self._buckets)

    def _begin(self, buckets: List[Bucket]) -> None:
        bucket = buckets[self._begun]
        self._begun += 1
        bucket.begin([self._dense(each) for each in bucket.parameters])

    def _dense(self, parameter: Parameter) -> torch.Tensor:
        """Return its gradient, after a sparse one was replaced by a dense one."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    def _begin_sparse(self, parameter: Parameter) -> Callable[[], torch.Tensor]:
        assert parameter.grad is not None
        gradient = parameter.grad if parameter.grad.is_sparse else parameter.grad.to_sparse(1)
        return sparse_allreduce_async(gradient, op=self._reduction.op, process_set=self._reduction.process_set)

    def _agree(self) -> List[Bucket]:
        """Return the first step's buckets: as DDP's, all gradients of a type in one, without the sparse ones.

        All ranks learn which are sparse on any rank, and an order: the latest place of a gradient on any rank.
        """
        places = {each: place for place, each in enumerate(self._ready, 1)}
        last = len(self._parameters) + 1
        numbers = [places.get(each, last) for each in self._parameters]
        numbers += [int(each.grad is not None and each.grad.is_sparse) for each in self._parameters]
        agreed = torch.tensor(numbers, dtype=torch.int64)
        work = begin_all_reduce(agreed, Max, self._reduction.process_set, self._kind)
        if work is not None:
            work.wait()
        dense = self._sort(agreed.tolist())
        return [Bucket(members, self._reduction) for members in reversed(assign(dense, _ALL, _ALL))]

    def agreed(self, numbers: List[int]) -> None:
        """Take the result of the others' first step, which this rank joined without data."""
        self._sort(numbers)
        self._rebuild()

    def _sort(self, numbers: List[int]) -> List[Parameter]:
        """Take the agreed places and sparse gradients; return the dense parameters."""
        half = len(self._parameters)
        if not self._sparse_as_dense:
            self._sparse = [each for each, sparse in zip(self._parameters, numbers[half:]) if sparse]
        apart = set(self._sparse)
        dense = [each for each in self._parameters if each not in apart]
        order = sorted(range(half), key=lambda number: (numbers[number], number))
        self._order = [self._parameters[number] for number in order if self._parameters[number] not in apart]
        return dense

    def _rebuild(self) -> None:
        """Make the buckets of all further steps."""
        buckets = [Bucket(members, self._reduction) for members in self._members()]
        self._bucket_of = {each: bucket for bucket in buckets for each in bucket.parameters}
        self._buckets = buckets

    def _members(self) -> List[List[Parameter]]:
        """Return DDP's buckets, or the script's ``groups`` in the order of their last gradients."""
        if not self._groups:
            return assign(self._order, FIRST_BUCKET_BYTES, BUCKET_BYTES)
        if isinstance(self._groups, int):
            each, more = divmod(len(self._order), self._groups)
            cuts = [number * each + min(number, more) for number in range(self._groups + 1)]
            groups = [self._order[start:end] for start, end in zip(cuts, cuts[1:])]  # noqa: RUF007 - Python 3.8
        else:
            mine = set(self._order)
            groups = [[each for each in group if each in mine] for group in self._groups]
            named = {each for group in groups for each in group}
            groups += [[each] for each in self._order if each not in named]
        place = {each: number for number, each in enumerate(self._order)}
        groups = [part for group in groups for part in assign(group, _ALL, _ALL)]
        return sorted((group for group in groups if group), key=lambda group: max(place[each] for each in group))


class _Distributed:
    """Mixed into the optimizer's own class, so that schedulers and scalers still accept it."""

    _reducer: Optional[Reducer]
    _synchronizes: bool
    _synchronized: bool
    param_groups: List[Any]

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks, before ``step``."""
        if self._reducer is not None:
            self._reducer.take([each for group in self.param_groups for each in group["params"]])
            self._reducer.finish()
        self._synchronized = True

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
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() reduces the gradients again after optimizer.synchronize(): "
                    "put it into `with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
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
            self._reducer.forget()
        self._synchronizes, self._synchronized = True, False
        return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.set_passes(passes)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Return the optimizer, of its own class, that averages gradients over the ranks before it steps.

    Raises:
        NotInStandIn: ``op=hvd.Adasum``.
        ValueError: names that are no pairs, come twice or miss a parameter; groups that are none.
    """
    check_reduction(op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor needs op=hvd.Average")
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    if named_parameters is not None:
        _check_names(list(named_parameters), parameters)
    groups = groups if groups is not None else num_groups or None
    _check_groups(groups)
    made: Any = object.__new__(type(type(optimizer).__name__, (_Distributed, type(optimizer)), {}))
    # A scheduler leaves a `step` of its own on the optimizer that it was given: that one would not reduce.
    made.__dict__.update({key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")})
    made.op, made.process_set, made.backward_passes_per_step = op, process_set, backward_passes_per_step
    made._synchronizes, made._synchronized, made._reducer = True, False, None
    if process_set.included() and (process_set.size() or 1) > 1:
        reduction = Reduction(op, compression, gradient_predivide_factor, process_set)
        made._reducer = Reducer(reduction, backward_passes_per_step, groups, sparse_as_dense=sparse_as_dense)
        made._reducer.take(parameters)
    return made  # type: ignore[no-any-return]


def _check_names(named: Sequence[Any], parameters: Sequence[torch.Tensor]) -> None:
    if not all(isinstance(each, tuple) and len(each) == 2 for each in named):
        raise ValueError("named_parameters are pairs of a name and a parameter, as model.named_parameters() has them")
    seen: Set[str] = set()
    twice = sorted({name for name, _ in named if name in seen or seen.add(name)})  # type: ignore[func-returns-value]
    if twice:
        raise ValueError("named_parameters has names twice: %s" % ", ".join(twice))
    known = {id(each) for _, each in named}
    if any(id(each) not in known for each in parameters):
        raise ValueError("the optimizer has parameters that named_parameters does not name")


def _check_groups(groups: Groups) -> None:
    if groups is None:
        return
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError("groups is a number of groups, or lists of parameters")
        return
    members = [each for group in groups for each in group]
    if not all(isinstance(each, torch.Tensor) for each in members):
        raise ValueError("groups holds lists of parameters")
    if len({id(each) for each in members}) < len(members):
        raise ValueError("a parameter is in groups twice")
