"""The wheel of recipes: what they import of ours comes along."""

import ast
from pathlib import Path

import pytest

import seatrial
from seatrial.images.dockerfile.context import _our_modules

ROOMS = [path for room in ("recipes", "train") for path in (Path(seatrial.__file__).parent / room).rglob("*.py")]


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_are_found_without_parsing(path: Path) -> None:
    imported = {
        name.split(".")[1]
        for node in ast.walk(ast.parse(path.read_bytes()))
        for name in _names(node)
        if name.startswith("seatrial.")
    }
    assert _our_modules(path) == imported


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_every_way_to_import_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "from seatrial.train.loop import fit\nfrom seatrial import events, errors as e\n"
        "def f():\n    import seatrial.frames\n    from seatrial_more import x\n"
    )
    assert _our_modules(tmp_path / "a.py") == {"train", "events", "errors", "frames"}
