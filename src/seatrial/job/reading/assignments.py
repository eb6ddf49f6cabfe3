"""Reads of names that nothing has assigned yet, whichever way a run takes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

from seatrial.job.reading.flow import FunctionNode, statements

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_Names: TypeAlias = set[str]


def early_reads(body: Sequence[ast.stmt], elsewhere: Collection[str]) -> list[ast.Name]:
    """Return the reads in a function or a module's top that fail unless another scope assigns the name.

    Args: elsewhere: names that parameters, builtins or other scopes assign.
    """
    found: list[ast.Name] = []
    names = {name for node in body for name in _stored(node)}
    with suppress(RecursionError):
        found += _block(body, {*elsewhere}, set())
    return [node for node in found if node.id in names and not node.id.startswith("__")]


def _block(block: Sequence[ast.AST], given: _Names, looped: _Names) -> Iterator[ast.Name]:
    """Yield the reads of statements in order, and add to ``given`` what they assign.

    Args: looped: names of the loop around them, which an earlier pass may assign before a branch that this one takes.
    """
    for node in block:
        tests = [getattr(node, name, None) for name in ("test", "iter", "subject", "value", "exc", "cause", "msg")]
        if isinstance(node, FunctionNode):
            tests = [*node.decorator_list, *node.args.defaults]
        elif isinstance(node, ast.ClassDef):
            tests = [*node.decorator_list, *node.bases]
        elif isinstance(node, ast.Assign | ast.Delete):
            tests += node.targets
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in given:
            yield node.target
        for test in (each for each in tests if isinstance(each, ast.expr)):
            given |= {*_stored(test)} if not isinstance(node, ast.Delete) else set()  # by := in it
            yield from _reads(test, given, looped)
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                yield from _reads(item.context_expr, given, looped)
                given |= {*_stored(item)}
            yield from _block(node.body, given, looped)
        elif isinstance(node, ast.Try):
            yield from _block(node.body, given, looped)
            for handler in node.handlers:
                yield from _block(handler.body, given | {*_stored(handler)} | looped, looped)
            yield from _block(node.orelse, given | looped, looped)
            yield from _block(node.finalbody, given | {*_stored(node)}, looped)
        elif isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.Match):
            loops = isinstance(node, ast.For | ast.AsyncFor | ast.While)
            own = {*_stored(node)} if loops else set()
            head = {*_stored(node.target)} if isinstance(node, ast.For | ast.AsyncFor) else set()
            cases = node.cases if isinstance(node, ast.Match) else ()
            bodies = [case.body for case in cases] or [getattr(node, "body", [])]
            for body in bodies:
                heads = {name for case in cases for part in (case.pattern, case.guard) for name in _stored(part)}
                yield from _block(body, given | head | heads | looped, looped | own)
            yield from _block(getattr(node, "orelse", []), given | own | looped, looped)
        given |= {*_stored(node)}


def _reads(node: ast.AST, given: _Names, looped: _Names) -> Iterator[ast.Name]:
    """Yield the names read in an expression; parts that may not be evaluated are read as branches are."""
    if isinstance(node, ast.Name):
        if node.id not in given and not isinstance(node.ctx, ast.Store):
            yield node
    elif isinstance(node, _COMPREHENSIONS):
        yield from _reads(node.generators[0].iter, given, looped)
    elif not isinstance(node, ast.Lambda):
        for number, each in enumerate(ast.iter_child_nodes(node)):
            first = not isinstance(node, ast.BoolOp | ast.IfExp) or number == isinstance(node, ast.BoolOp)
            yield from _reads(each, given if first else given | looped, looped)


def has_loop(node: ast.AST) -> bool:
    """Return whether an expression in a statement may be evaluated never."""
    return any(isinstance(each, _COMPREHENSIONS) for each in ast.walk(node))


def _stored(node: ast.AST | None) -> Iterator[str]:
    """Yield the names that a statement may assign, delete, import or define."""
    for each in statements([node] if node is not None else []):
        if isinstance(each, ast.Name):
            if not isinstance(each.ctx, ast.Load):
                yield each.id
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in each.names)
        else:
            names = (getattr(each, "name", None), getattr(each, "rest", None))
            yield from (name for name in names if isinstance(name, str))
