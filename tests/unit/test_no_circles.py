"""No two modules of seatrial import each other when they run, over however many others; imports in functions count."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that can run, which those under ``if TYPE_CHECKING`` cannot."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield from running(node)


def imported(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Return the modules that a file imports: an import in a function counts, one for annotations not."""
    found: set[str] = set()
    for node in running(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
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


@pytest.mark.parametrize("start", ["import part.a", "def later():\n    from part import a"])
def test_a_circle_is_found(tmp_path: Path, start: str) -> None:
    package = tmp_path / "part"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("from part import b\n")
    (package / "b.py").write_text("from part.c import x\n")
    (package / "c.py").write_text(f"{start}\nx = 1\n")
    found = circle(package)
    assert found is not None and set(found) == {"part.a", "part.b", "part.c"}
