"""Evaluate the conditions that code sets on other packages' versions: constants, comparisons, ``and``, ``or``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from seatrial.job.reading.signs import dotted, full_name, last_name

_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_EXCHANGED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

#: Functions that parse a version, or its numbers, from text.
_READERS = {"Version", "LooseVersion", "StrictVersion", "parse", "parse_version", "digit_version", "map"}
_READERS |= {"tuple", "int"}
_DEEPEST = 12

#: Module-level names of a file → the expressions that they are assigned.
Values = Mapping[str, Sequence[ast.expr | None]]


class _Side(NamedTuple):
    """Hold a side of a comparison: a constant version, or the module whose version it is, in one of the forms below."""

    value: str
    is_module: bool
    form: str = "text"


#: Form of a version → operators that give a bound. Python compares texts by characters, so only == and != count.
_READABLE = {"text": "== !=", "parts": "", "first": "== != < >=", "version": "== != < <= > >="}


def version_bounds(node: ast.AST, values: Values, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (module, ``<=1.4.0``) without which a statement or a call, as transformers' check_min_version, fails."""
    match node:
        case ast.Assert(test=test):
            yield from _bounds(test, True, values, names)
        case ast.If(test=test, body=[*_, ast.Raise()]):
            yield from _bounds(test, False, values, names)
        case ast.Call(func=func, args=[ast.Constant(value=str(text)), *_]) if "_version" in last_name(func):
            top, called = full_name(dotted(func), names).partition(".")[0], last_name(func)
            with suppress(InvalidRequirement, InvalidVersion):
                if called == "check_min_version":
                    yield top, f">={Version(text).base_version}"
                elif called == "require_version" and (wanted := Requirement(text)).specifier:
                    yield wanted.name, str(wanted.specifier)


def _bounds(test: ast.expr, holds: bool, values: Values, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the bounds on versions if a condition holds, or if it does not."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _bounds(inner, not holds, values, names)
        case ast.BoolOp(op=op, values=parts) if isinstance(op, ast.And) == holds:
            for part in parts:
                yield from _bounds(part, holds, values, names)
        case ast.Compare(left=first, ops=ops, comparators=others) if holds or len(ops) == 1:
            sides = [_side(each, values, names) for each in (first, *others)]
            for left, compared, right in zip(sides, ops, sides[1:], strict=False):
                if left and right and left.is_module != right.is_module and (sign := _SIGNS.get(type(compared))):
                    module, other = (left, right) if left.is_module else (right, left)
                    sign = sign if left.is_module else _EXCHANGED.get(sign, sign)
                    yield from _bound(module, sign if holds else _OPPOSITE[sign], other.value)


def _bound(module: _Side, sign: str, version: str) -> Iterator[tuple[str, str]]:
    if sign in _READABLE[module.form].split():
        later = ".*" if module.form == "first" and sign in ("==", "!=") else ""
        with suppress(InvalidSpecifier):
            yield module.value, str(SpecifierSet(f"{sign}{version}{later}"))


def _side(node: ast.expr, values: Values, names: Mapping[str, str], deep: int = 0) -> _Side | None:
    """Return what an expression stands for; None if it is neither a version nor a constant."""

    def inner(each: ast.expr, form: str = "") -> _Side | None:
        found = _side(each, values, names, deep + 1) if deep < _DEEPEST else None
        return found._replace(form=form) if found and form and found.form != "first" else found

    name = full_name(dotted(node), names)
    if name.endswith(".__version__"):
        top = name.partition(".")[0]
        return _Side(top, True) if top else None
    match node:
        case ast.Constant(value=str() | int() as value):
            return _Side(str(value), False)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            numbers = [str(each.value) for each in parts if isinstance(each, ast.Constant)]
            return _Side(".".join(numbers), False) if len(numbers) == len(parts) else None
        case ast.Name(id=known):
            found = values.get(known, ())
            return inner(found[0]) if len(found) == 1 and found[0] is not None else None
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=text, attr="split"), args=[ast.Constant(value="+")])
        ):
            return inner(text)
        case ast.Subscript(value=text, slice=ast.Constant(value=0) | ast.Slice(lower=None, step=None)):
            whole = inner(text)
            return whole._replace(form="first") if whole and whole.form != "text" else None
        case ast.Call(func=ast.Attribute(value=text, attr="split"), args=[ast.Constant(value=".")]):
            return inner(text, "parts")
        case ast.Call(func=func, args=[*_, last]) if last_name(func) in _READERS:
            return inner(last, "version")
        case ast.ListComp(generators=[each]) | ast.GeneratorExp(generators=[each]):
            return inner(each.iter, "version")
    return None
