"""No two modules of seatrial import each other, over however many others; imports for type checkers count as well."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import seatrial

SOURCE = Path(seatrial.__file__).parent


def modules(package: Path) -> dict[str, Path]:
    """Dotted name → file, of every module of a package."""
    names = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """The modules whose import runs when the file is loaded, and those under TYPE_CHECKING; not those in functions."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            found |= imported(node, known)
    return found & known.keys()


def circle(package: Path) -> list[str] | None:
    known = modules(package)
    graph = {name: imported(ast.parse(path.read_text()), known) - {name} for name, path in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        names: list[str] = error.args[1]
        return names
    return None


def test_nothing_imports_in_a_circle() -> None:
    assert len(modules(SOURCE)) > 300
    assert circle(SOURCE) is None


@pytest.mark.parametrize("guard", ["", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "])
def test_a_circle_is_found(tmp_path: Path, guard: str) -> None:
    package = tmp_path / "room"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from room import b\n")
    (package / "b.py").write_text("from room.c import x\n")
    (package / "c.py").write_text(f"{guard}import room.a\nx = 1\n")
    found = circle(package)
    assert found is not None and set(found) == {"room.a", "room.b", "room.c"}


def test_an_import_in_a_function_is_no_circle(tmp_path: Path) -> None:
    package = tmp_path / "room"
    package.mkdir()
    (package / "a.py").write_text("import room.b\n")
    (package / "b.py").write_text("def later():\n    import room.a\n")
    assert circle(package) is None
