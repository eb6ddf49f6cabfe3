"""The gradients of one optimizer: reduced while the backward pass still runs, bucket by bucket.

What the ranks must agree on is asked once, at the end of the first step: the order in which gradients become ready, and
which are sparse. From the second step on, buckets are filled in that order, and begin in it on every rank.
"""

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch

from .buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, Parameter, Reduction, assign
from .exchanges import sparse_allreduce_async
from .operations import Max, begin_all_reduce, take_result

#: Bytes of a bucket for all that there is.
_ALL = float("inf")

Groups = Union[int, Sequence[Sequence[Parameter]], None]


class Reducer:
    """Hooks on parameters, and the buckets that they fill.

    Attributes:
        busy: gradients have come since the last ``finish``.
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
        self._kept: List[Any] = []  # accumulators of gradients live as long as somebody holds them
        self._lock = threading.Lock()
        self._told_as = take_result(self)

    def take(self, parameters: Sequence[Parameter]) -> None:
        """Parameters to look after from now on; those that it has are passed over."""
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
        """What the passes since the last step have left."""
        self._left = dict.fromkeys(self._parameters, self.passes)
        if not self._begun:
            self._ready, self.busy = [], False
            for bucket in self._buckets or ():
                bucket.missing = len(bucket.parameters)

    def finish(self) -> None:
        """Reduce what has not begun, wait for all, and leave the results in the gradients."""
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
        """A pass has left its gradient."""
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
        """Its gradient, made dense for good where it is sparse."""
        assert parameter.grad is not None
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
        return parameter.grad

    def _begin_sparse(self, parameter: Parameter) -> Callable[[], torch.Tensor]:
        assert parameter.grad is not None
        gradient = parameter.grad if parameter.grad.is_sparse else parameter.grad.to_sparse(1)
        return sparse_allreduce_async(gradient, op=self._reduction.op, process_set=self._reduction.process_set)

    def _agree(self) -> List[Bucket]:
        """The first step's buckets: as DDP's, all gradients of a type in one, and sparse ones apart.

        All ranks learn which are sparse anywhere, and an order: the latest place that a gradient had on any rank.
        """
        places = {each: place for place, each in enumerate(self._ready, 1)}
        last = len(self._parameters) + 1
        told = [places.get(each, last) for each in self._parameters]
        told += [int(each.grad is not None and each.grad.is_sparse) for each in self._parameters]
        agreed = torch.tensor(told, dtype=torch.int64)
        work = begin_all_reduce(agreed, Max, self._reduction.process_set, self._told_as)
        if work is not None:
            work.wait()
        dense = self._sort(agreed.tolist())
        return [Bucket(members, self._reduction) for members in reversed(assign(dense, _ALL, _ALL))]

    def agreed(self, numbers: List[int]) -> None:
        """The others have taken their first step while this rank had none."""
        self._sort(numbers)
        self._rebuild()

    def _sort(self, numbers: List[int]) -> List[Parameter]:
        """Take what all ranks told: places in the order, and which gradients are sparse. The dense ones."""
        half = len(self._parameters)
        if not self._sparse_as_dense:
            self._sparse = [each for each, sparse in zip(self._parameters, numbers[half:]) if sparse]
        apart = set(self._sparse)
        dense = [each for each in self._parameters if each not in apart]
        order = sorted(range(half), key=lambda number: (numbers[number], number))
        self._order = [self._parameters[number] for number in order if self._parameters[number] not in apart]
        return dense

    def _rebuild(self) -> None:
        """The buckets of all further steps."""
        buckets = [Bucket(members, self._reduction) for members in self._members()]
        self._bucket_of = {each: bucket for bucket in buckets for each in bucket.parameters}
        self._buckets = buckets

    def _members(self) -> List[List[Parameter]]:
        """As DDP's; or as the script's ``groups`` have it, which come when their last gradient does."""
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
