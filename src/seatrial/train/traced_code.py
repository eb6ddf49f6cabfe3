"""Read a module's own code by torch.fx, and run modules by another ``forward`` for a while."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn
from torch.fx import Graph, Tracer

from seatrial.train.data.samples import host_random_numbers_kept
from seatrial.train.errors import first_line
from seatrial.train.evaluation import modes_kept


@contextmanager
def running_by(pairs: Iterable[tuple[nn.Module, Callable[..., Any]]], name: str = "forward") -> Iterator[None]:
    """Run each module by its function within, in the place of the method of this name."""
    pairs = list(pairs)
    kept = [(module, module.__dict__.get(name)) for module, _ in pairs]
    for module, function in pairs:
        module.__dict__[name] = function
    try:
        yield
    finally:
        for module, before in kept:
            if before is None:
                module.__dict__.pop(name, None)
            else:
                module.__dict__[name] = before


#: Values that Python code may count or switch with.
PLAIN = (bool, int, float, str, type(None))


class NotTraceable(Exception):
    """The reason why a module's code cannot be read, in a few words."""


class _Shallow(Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def read(module: nn.Module) -> Graph:
    """Return the graph of the module in training; it and random numbers stay as they are. Raises NotTraceable."""
    kind, code = type(module).__name__, getattr(type(module).forward, "__code__", None)
    if code is None:
        raise NotTraceable(f"{kind}'s forward is not a function")
    optional = [p for p in inspect.signature(type(module).forward).parameters.values() if p.default is not p.empty]
    if optional:
        raise NotTraceable(f"{kind}'s code may take another way without {optional[0].name}")
    if tested := {"isinstance", "hasattr", "type", "callable"}.intersection(code.co_names):
        raise NotTraceable(f"{kind}'s code tests its input's type ({min(tested)})")
    before = random.getstate(), str(np.random.get_state())
    with modes_kept(module), host_random_numbers_kept():
        module.train()
        try:
            graph = _Shallow().trace(module)
        except Exception as error:
            raise NotTraceable(f"{kind}'s code cannot be read: {first_line(error)[:80]}") from error
        drew = before != (random.getstate(), str(np.random.get_state()))
    if drew:
        raise NotTraceable(f"{kind}'s code draws random numbers on the host")
    return graph


def hooked(module: nn.Module) -> bool:
    """Return True if a call of the module does more than its ``forward``."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def settings_of(module: nn.Module) -> dict[str, Any]:
    """Return the settings that a module's code may branch on."""
    return {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
