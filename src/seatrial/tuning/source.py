"""Source: one of the user's files, parsed so that it can be written back with nothing else changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

Node = TypeVar("Node", bound=cst.CSTNode)


class Source:
    """A file's syntax, with the lines of its parts.

    Args:
        data: the file; its encoding and line endings are kept.

    Raises libcst.ParserSyntaxError, UnicodeDecodeError.
    """

    def __init__(self, data: bytes) -> None:
        wrapper = MetadataWrapper(cst.parse_module(data))
        self.module = wrapper.module
        self._ranges = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._all = [node for node in self._ranges if isinstance(node, cst.CSTNode)]
        self._calls = [node for node in self._all if isinstance(node, cst.Call)]

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line."""
        found: CodeRange = self._ranges[node]
        return found.start.line, found.end.line

    def of(self, kind: type[Node]) -> Iterator[Node]:
        """All parts of a kind."""
        among: list[cst.CSTNode] = list(self._calls) if kind is cst.Call else self._all
        return (node for node in among if isinstance(node, kind))

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What a part is in, from the inside out."""
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The simple statement that a part is in; None in the head of an ``if``, a ``for``, a ``lambda`` …"""
        for outer in self.above(node):
            if isinstance(outer, cst.SimpleStatementLine):
                return outer
            if isinstance(outer, (cst.BaseCompoundStatement, cst.Lambda, cst.CompFor, cst.BaseSuite)):
                return None
        return None

    def calls_at(self, line: int) -> list[cst.Call]:
        """Calls that the line is part of: those that begin there first, then those around it, the smallest first."""
        found = [call for call in self._calls if self.lines(call)[0] <= line <= self.lines(call)[1]]
        return sorted(found, key=lambda call: (self.lines(call)[0] != line, self.lines(call)[1] - self.lines(call)[0]))

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)


def last_name(function: cst.BaseExpression) -> str:
    """``torch.utils.data.DataLoader`` → ``DataLoader``; empty for what has no name."""
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""
