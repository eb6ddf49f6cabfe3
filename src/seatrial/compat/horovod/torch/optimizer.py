"""``DistributedOptimizer``: the script's optimizer, whose gradients are those of all ranks once it steps."""

import warnings
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch

from .buckets import Reduction
from .compression import Compression
from .operations import Average, check_reduction
from .process_sets import ProcessSet, global_process_set
from .reducer import Groups, Reducer


class _Distributed:
    """Put in front of the optimizer's own class, so that it stays what it was to schedulers and scalers."""

    _reducer: Optional[Reducer]
    _synchronizes: bool
    _synchronized: bool
    param_groups: List[Any]

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks, for a look at them before ``step``."""
        if self._reducer is not None:
            self._reducer.take([each for group in self.param_groups for each in group["params"]])
            self._reducer.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """``step`` in here takes the gradients as they are, after ``synchronize``."""
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
        """Raises AssertionError while gradients are on their way."""
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
    """The optimizer with its own class, parameters and state, that averages gradients over the ranks before it steps.

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
