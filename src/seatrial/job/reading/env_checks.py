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
    """Hold a check that every run makes.

    Attributes:
        method: of str, which is called on the value before: ``lower``, or "".
        wanted: whether the value must be one of ``values``, or none of them.
        where: ``train.py:93``.
    """

    name: str
    method: str
    values: tuple[str, ...]
    wanted: bool
    where: str

    def accepts(self, value: str) -> bool:
        """Return whether the script goes on with this value."""
        return ((getattr(value, self.method)() if self.method else value) in self.values) is self.wanted

    def __str__(self) -> str:
        return f"{self.name} is {'' if self.wanted else 'not '}{' or '.join(self.values)}"


#: An expression, constants, and whether it must be one of them, or none.
_Members: TypeAlias = tuple[ast.expr, tuple[str, ...], bool]


def env_checks(found: Iterable[tuple[Unit, str, ast.stmt]], constants: Constants) -> Iterator[EnvCheck]:
    """Yield the checks among statements. Args: found: (unit, ``train.py:93``, statement)."""
    for unit, where, node in found:
        check = _check(node) if unit in constants.always else None
        if check is not None and (variable := constants.variable(check[0], unit)):
            yield EnvCheck(*variable, *check[1:], where)


def _check(node: ast.stmt) -> _Members | None:
    """Return what must hold, or a statement fails."""
    if isinstance(node, ast.Assert):
        return _members(node.test)
    known: tuple[str, ...] = ()
    text = None
    while isinstance(node, ast.If) and (each := _members(node.test)):
        expression, values, wanted = each
        text = text or ast.dump(expression)
        if ast.dump(expression) != text or (known and not wanted):
            return None
        if fails(node.body):
            return None if known else (expression, values, not wanted)
        known += values
        if fails(node.orelse):
            return (expression, known, True) if wanted else None
        node = node.orelse[0] if len(node.orelse) == 1 and wanted else ast.Pass()
    return None


def _members(test: ast.expr) -> _Members | None:
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return None
    op, right = test.ops[0], test.comparators[0]
    given = [right] if isinstance(op, ast.Eq | ast.NotEq) else getattr(right, "elts", [])
    values = tuple(value for value in map(literal, given) if value is not None)
    known = given and len(values) == len(given) and isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
    return (test.left, values, isinstance(op, ast.Eq | ast.In)) if known else None
