"""Values of environment variables that a script rejects: ``if kind == "mnist": … else: raise ValueError(kind)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

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


class _Members(NamedTuple):
    """Hold a comparison of an expression with constants, and whether it holds for them, or for all others."""

    node: ast.expr
    values: tuple[str, ...]
    wanted: bool


def env_checks(found: Iterable[tuple[Unit, str, ast.stmt]], constants: Constants) -> Iterator[EnvCheck]:
    """Yield the checks among statements. Args: found: (unit, ``train.py:93``, statement)."""
    for unit, where, node in found:
        check = _check(node) if unit in constants.always else None
        if check is not None and (variable := constants.variable(check.node, unit)):
            yield EnvCheck(*variable, check.values, check.wanted, where)


def _check(node: ast.stmt) -> _Members | None:
    """Return what must hold, or a statement fails."""
    if isinstance(node, ast.Assert):
        return _members(node.test)
    values: tuple[str, ...] = ()
    first = None
    while isinstance(node, ast.If) and (each := _members(node.test)):
        first = first or ast.dump(each.node)
        if ast.dump(each.node) != first:
            return None
        if fails(node.body):
            return None if values else each._replace(wanted=not each.wanted)
        values += each.values
        if not each.wanted or fails(node.orelse):
            return each._replace(values=values) if each.wanted else None
        if len(node.orelse) != 1:
            return None
        node = node.orelse[0]
    return None


def _members(test: ast.expr) -> _Members | None:
    match test:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[ast.Constant() as right]):
            given = [right]
        case ast.Compare(
            left=left,
            ops=[ast.In() | ast.NotIn() as op],
            comparators=[ast.Tuple(elts=given) | ast.List(elts=given) | ast.Set(elts=given)],
        ):
            pass
        case _:
            return None
    values = tuple(value for value in map(literal, given) if value is not None)
    return _Members(left, values, isinstance(op, ast.Eq | ast.In)) if len(values) == len(given) else None
