"""Reads of names that nothing has assigned yet, whichever way a run takes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from seatrial.job.reading.flow import COMPREHENSIONS, FunctionNode, statements


def early_reads(body: Sequence[ast.stmt], elsewhere: Collection[str]) -> list[ast.Name]:
    """Return the reads in a function or a module's top that fail unless ``elsewhere`` has the name."""
    found: list[ast.Name] = []
    names = {name for node in body for name in _stored(node) if not name.startswith("__")}
    with suppress(RecursionError):
        found += _block(body, {*elsewhere}, set())
    return [node for node in found if node.id in names]


def _block(block: Sequence[ast.AST], given: set[str], looped: set[str]) -> Iterator[ast.Name]:
    """Yield reads in order, adding assigned names to ``given``; ``looped``: names that an earlier pass may assign."""
    for node in block:
        heads = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
        if isinstance(node, FunctionNode):  # whose annotations may not be evaluated
            heads = [*node.decorator_list, *node.args.defaults]
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in given:
            yield node.target
        for head in heads:
            given |= {each.target.id for each in statements([head]) if isinstance(each, ast.NamedExpr)}
            yield from _reads(head, given, looped)
        for item in getattr(node, "items", ()):
            yield from _reads(item.context_expr, given, looped)
            given |= {*_stored(item)}
        own = {*_stored(node)}
        if not isinstance(node, FunctionNode | ast.ClassDef):
            loops = isinstance(node, ast.For | ast.AsyncFor | ast.While)
            first = given if isinstance(node, ast.With | ast.AsyncWith | ast.Try) else given | looped
            first |= {*_stored(node.target)} if isinstance(node, ast.For | ast.AsyncFor) else set()
            yield from _block(getattr(node, "body", ()), first, looped | own if loops else looped)
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                yield from _block(part.body, given | {*_stored(part)} | looped, looped)
            more = looped if isinstance(node, ast.If) else own
            yield from _block([*getattr(node, "orelse", ()), *getattr(node, "finalbody", ())], given | more, looped)
        given |= own


def _reads(node: ast.AST, given: set[str], looped: set[str]) -> Iterator[ast.Name]:
    """Yield the names read in an expression; parts that may not be evaluated are read as branches are."""
    if isinstance(node, ast.Name):
        yield from [] if node.id in given or isinstance(node.ctx, ast.Store) else [node]
    elif isinstance(node, COMPREHENSIONS):
        yield from _reads(node.generators[0].iter, given, looped)
    elif not isinstance(node, ast.Lambda):
        for number, each in enumerate(ast.iter_child_nodes(node)):  # of BoolOp, the operator is the first
            sure = not isinstance(node, ast.BoolOp | ast.IfExp) or number == isinstance(node, ast.BoolOp)
            yield from _reads(each, given if sure else given | looped, looped)


def _stored(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement may assign, delete, import or define."""
    for each in statements([node]):
        if isinstance(each, ast.Name):
            yield from [] if isinstance(each.ctx, ast.Load) else [each.id]
        elif isinstance(each, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in each.names)
        else:
            names = (getattr(each, "name", None), getattr(each, "rest", None))
            yield from (name for name in names if isinstance(name, str))
