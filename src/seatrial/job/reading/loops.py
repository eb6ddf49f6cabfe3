"""Find the values of a loop's variables in each pass, for loops over lists and tables written in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from seatrial.job.reading.constants import Binding, Constants
from seatrial.job.reading.parsed_modules import Module, Unit
from seatrial.job.reading.signs import last_name, literal

#: Most passes of a loop that are read.
_MOST_PASSES = 8
#: Methods of a table that a loop goes through; "" stands for the table itself.
_PARTS = ("", "items", "keys", "values")


class Loops:
    """Finds the passes of loops around a line.

    Args:
        module_at: a file's module.
        constants: finds what a loop goes through; it takes the values of a pass as its ``looped``.
    """

    def __init__(self, module_at: Callable[[Path], Module | None], constants: Constants) -> None:
        self._module_at, self._constants = module_at, constants

    def passes(self, unit: Unit, line: int) -> list[dict[tuple[Unit, str], Binding]]:
        """Return (unit, variable) → its value for each pass of the innermost loop around a line whose list or table is
        written; [] without such a loop."""
        if (module := self._module_at(unit[0])) is None:
            return []
        around = (each for each in module.flow.around(unit[1], line) if isinstance(each, ast.For))
        loops = [each for each in around if each.body[0].lineno <= line <= (each.end_lineno or 0)]
        found = (self._passes_of(each, unit, module) for each in reversed(loops))
        return next(filter(None, found), [])

    def _passes_of(self, loop: ast.For, unit: Unit, module: Module) -> list[dict[tuple[Unit, str], Binding]]:
        self._constants.looks = 0
        over, names = loop.iter, [last_name(each) for each in getattr(loop.target, "elts", [loop.target])]
        if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and over.args:
            over, names = over.args[0], names[1:]
        bound, ends = _bound_in(loop)
        found: list[dict[tuple[Unit, str], Binding]] = []
        for row in islice(self._rows(over, unit, module), _MOST_PASSES) if bound.isdisjoint(names) else ():
            *first, last = row
            if len(names) > len(row) and (inner := getattr(last.node, "elts", [])):  # for name, (path, size) in …
                row = [*first, *[last._replace(node=each) for each in inner]]
            if len(row) == len(names):
                values = zip(names, row, strict=True)
                found.append({(unit, name): each._replace(sure=each.sure and not ends) for name, each in values})
        return found

    def _rows(self, over: ast.expr, unit: Unit, module: Module) -> Iterator[list[Binding]]:
        """Yield the values of each pass: an item of a list, or a table's key, its value or both."""
        owner, part = over, ""
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and not over.args:
            owner, part = over.func.value, over.func.attr
        known = [each.sure for each in self._constants.candidates(owner, unit, 1)]
        if part not in _PARTS or not (known == [True] or isinstance(owner, ast.Dict | ast.List | ast.Tuple)):
            return
        table, where = self._constants.table(owner, unit, 1)
        sure = not _is_changed(module.source, last_name(owner))
        for at, (key, value) in enumerate(zip(table.keys, table.values, strict=True) if table else ()):
            part = part or ("values" if literal(key) == str(at) else "keys")  # of a list, or of a table
            taken = {"items": (key, value), "keys": (key,), "values": (value,)}[part]
            yield [Binding(each, where, sure) for each in taken]


@lru_cache(maxsize=64)
def _is_changed(source: bytes, name: str) -> bool:
    """Return whether code may add or remove a row of a table."""
    name = re.escape(name)
    changes = rf"\b{name}(\.(?!items\(|keys\(|values\(|get\()\w+\(|\[[^]\n]{{0,99}}\]\s*=[^=])|\bdel .*\b{name}\b"
    return bool(name and re.search(changes.encode(), source))


@lru_cache(maxsize=64)
def _bound_in(loop: ast.For) -> tuple[set[str], bool]:
    """Return the names that a loop's body binds, and whether a pass may end early or be skipped."""
    inside = [each for part in loop.body for each in ast.walk(part)]
    names = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    names |= {each.arg for each in inside if isinstance(each, ast.arg)}
    return names, any(isinstance(each, ast.Break | ast.Continue | ast.Return) for each in inside)
