"""Values of environment variables that a script rejects: ``if kind == "mnist": … else: raise ValueError(kind)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from seatrial.job.reading.constants import Constants
from seatrial.job.reading.flow import fails
from seatrial.job.reading.parsed_modules import Unit
from seatrial.job.reading.signs import literal


class EnvCheck(NamedTuple):
    """Hold a check that every run makes at ``where``; ``wanted``: the value must be one of these, or else none."""

    name: str
    values: tuple[str, ...]
    wanted: bool
    where: str

    def accepts(self, value: str) -> bool:
        """Return whether the script goes on with this value, which it may change to lower case."""
        return (
            not {value, value.lower(), value.upper()}.isdisjoint(self.values)
            if self.wanted
            else value not in self.values
        )

    def __str__(self) -> str:
        return f"{self.name} is {'' if self.wanted else 'not '}{' or '.join(self.values)}"


#: An expression, constants, and whether it must be one of them, or none.
_Members: TypeAlias = tuple[ast.expr, tuple[str, ...], bool]


def env_checks(found: Iterable[tuple[Unit, str, ast.stmt]], constants: Constants) -> Iterator[EnvCheck]:
    """Yield the checks among statements. Args: found: (unit, ``train.py:93``, statement)."""
    for unit, where, node in found:
        check = _check(node) if unit in constants.always else None
        if check is not None and (variable := constants.variable(check[0], unit)):
            yield EnvCheck(variable, *check[1:], where)


def _check(node: ast.stmt, known: tuple[str, ...] = (), text: str | None = None) -> _Members | None:
    """Return what must hold, or a statement fails. Args: known, text: of the tests before, if this is an ``elif``."""
    found = _members(node.test) if isinstance(node, ast.Assert | ast.If) else None
    if found is None or text not in (None, ast.dump(found[0])) or not isinstance(node, ast.If):
        return found if isinstance(node, ast.Assert) else None
    expression, values, wanted = found
    if fails(node.body):
        return None if known else (expression, values, not wanted)
    if not wanted or fails(node.orelse):
        return (expression, (*known, *values), True) if wanted else None
    return _check(node.orelse[0], (*known, *values), ast.dump(expression)) if len(node.orelse) == 1 else None


def _members(test: ast.expr) -> _Members | None:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    op, right = test.ops[0], test.comparators[0]
    given = [right] if isinstance(op, ast.Eq | ast.NotEq) else getattr(right, "elts", [])
    values = tuple(value for value in map(literal, given) if value is not None)
    known = given and len(values) == len(given) and isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
    return (test.left, values, isinstance(op, ast.Eq | ast.In)) if known else None
