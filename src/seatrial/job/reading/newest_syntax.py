"""The newest Python syntax in a module: an older Python cannot even read it.

Sources: "What's New in Python" 3.10 (match), 3.11 (except*), 3.12 (type, type parameters) and 3.14 (except without
parentheses, t-strings). What this Python does not know it cannot parse either: see seatrial.system.source.
"""

from __future__ import annotations

import ast
import re

#: Words without which nothing of it can be there: most modules are not walked for it.
_HINTS = re.compile(
    rb"^[ \t]*(?:match[ \t(]|except[ \t]*\*|type[ \t]+\w|(?:async[ \t]+)?def[ \t]+\w+\[|class[ \t]+\w+\["
    rb"|except[ \t]+[^(:\n]+,)|\b(?:[tT][rR]?|[rR][tT])[\"']",
    re.MULTILINE,
)

#: Node → the Python that brought it; named, since an older host has not all of them.
_BROUGHT = {"Match": (3, 10), "TryStar": (3, 11), "TypeAlias": (3, 12), "TemplateStr": (3, 14)}


def least_python(tree: ast.Module, source: bytes) -> tuple[tuple[int, int], int] | None:
    """((3, 12), line) of the newest syntax; None where Python 3.8 reads it all, as far as this looks."""
    if not _HINTS.search(source):
        return None
    found: list[tuple[tuple[int, int], int]] = []
    for node in ast.walk(tree):
        brought = _BROUGHT.get(type(node).__name__)
        if getattr(node, "type_params", None):
            brought = (3, 12)
        if isinstance(node, ast.ExceptHandler) and isinstance(several := node.type, ast.Tuple):
            # Without parentheses, the tuple begins where its first class does.
            brought = (3, 14) if several.elts and several.col_offset == several.elts[0].col_offset else brought
        if brought is not None:
            found.append((brought, getattr(node, "lineno", 1)))
    return max(found, key=lambda each: (each[0], -each[1]), default=None)
