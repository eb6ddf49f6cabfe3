"""Edits of one file: what each part becomes, collected first and made in one go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from seatrial.tuning.source import Source


class Edits(cst.CSTTransformer):
    """Changes to a Source's parts, each named by the part it is about.

    Args:
        source: the parts are of its module.

    Attributes:
        torch_is_there: ``import torch`` has been added.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source
        self.torch_is_there = False
        self._calls: dict[cst.CSTNode, list[Callable[[Any], cst.BaseExpression]]] = {}
        self._around: dict[cst.CSTNode, Callable[[Any], cst.BaseStatement]] = {}
        self._behind: dict[cst.CSTNode, list[cst.BaseStatement]] = {}

    def call(self, call: cst.Call, change: Callable[[Any], cst.BaseExpression]) -> None:
        """``change`` the call, after what else is changed in it."""
        self._calls.setdefault(call, []).append(change)

    def call_first(self, call: cst.Call, change: Callable[[Any], cst.BaseExpression]) -> None:
        """``change`` the call before other changes of it."""
        self._calls.setdefault(call, []).insert(0, change)

    def around(self, statement: cst.CSTNode, change: Callable[[Any], cst.BaseStatement]) -> None:
        """Put something around a statement."""
        self._around.setdefault(statement, change)

    def behind(self, statement: cst.CSTNode, lines: Sequence[str]) -> None:
        """New lines behind a statement; the same ones once."""
        made = self._behind.setdefault(statement, [])
        for line in lines:
            new = cst.parse_statement(line)
            if not any(new.deep_equals(other) for other in made):
                made.append(new)

    def first_behind(self, statement: cst.CSTNode, line: str) -> None:
        """A new line behind a statement, before other new ones."""
        self._behind.setdefault(statement, []).insert(0, cst.parse_statement(line))

    def made(self) -> bytes:
        """The file with all of it."""
        made = self.source.module.visit(self)
        return made.bytes

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = updated_node
        for change in self._calls.get(original_node, ()):
            updated = change(updated)
        if original_node in self._around:
            updated = self._around[original_node](updated)
        if original_node in self._behind:
            updated = cst.FlattenSentinel([updated, *self._behind[original_node]])
        return updated
