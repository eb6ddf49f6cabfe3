"""Which functions of the project a call runs, as far as names tell."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

from seatrial.job.reading.parsed_modules import Module, Unit
from seatrial.job.reading.signs import dotted


def remember_type(module: Module, node: ast.Assign) -> None:
    """``net = Net()``: what is called on ``net`` later is a method of ``Net``."""
    if isinstance(node.value, ast.Call) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        module.types[node.targets[0].id] = dotted(node.value.func)


def called_by(module: Module, unit: str, call: ast.Call, module_at: Callable[[Path], Module | None]) -> Iterator[Unit]:
    """Functions of the project that a call in ``unit`` runs: its own, and those that it is given by name."""
    names = [call.func, *call.args, *(keyword.value for keyword in call.keywords)]
    for each in names:
        called = dotted(each)
        if called and (each is call.func or isinstance(each, ast.Name)):
            yield from named(module, unit, called, module_at)


def named(module: Module, unit: str, called: str, module_at: Callable[[Path], Module | None]) -> Iterator[Unit]:
    """Functions of the project that ``net.make``, ``Net``, ``self.load`` or ``make`` stands for in ``unit``."""
    first, _, rest = called.partition(".")
    if first == "self" and "." in unit:
        first = unit.partition(".")[0]
    elif first in module.types and rest:
        first = module.types[first]
        if "." not in first:
            yield from _in(module, f"{first}.{rest}")
            return
    if first in module.bound:
        path, inner = module.bound[first]
        other = module_at(path)
        name = ".".join(part for part in (inner, rest) if part)
        if other is not None and name:
            yield from _in(other, name)
    else:
        yield from _in(module, f"{first}.{rest}" if rest else first)


def _in(module: Module, name: str) -> Iterator[Unit]:
    flow = module.flow
    if name in flow.functions:
        yield module.path, name
    elif name in flow.bases:  # a class: calling it runs its __init__
        if f"{name}.__init__" in flow.functions:
            yield module.path, f"{name}.__init__"
    elif "." in name:  # a method of a class above
        owner, _, method = name.partition(".")
        for base in flow.bases.get(owner, ()):
            if f"{base}.{method}" in flow.functions:
                yield module.path, f"{base}.{method}"
                return
