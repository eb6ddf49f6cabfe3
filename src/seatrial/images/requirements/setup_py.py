"""setup.py, read and never run: the literal ``install_requires`` and ``python_requires`` of its setup() call."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.declared import Declared
from seatrial.images.requirements.pyproject import python_specifier
from seatrial.images.requirements.requirements_files import MOST_LINES, checked_requirement
from seatrial.system.project_files import read_bytes
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source


def read_setup(file: Path) -> Declared | None:
    """The file's requirements, or None when it lists none literally. Raises ConfigError naming ``file:line``."""
    try:
        source = read_bytes(file, inside=file.parent, limit_bytes=MAX_BYTES)
        if marks(source) > MOST_MARKS:
            raise UnreadableSourceError(f"setup.py is too long to be read: {len(source) / 1e6:.3g} MB")
        tree = parse_source(source, file.name)
    except UnreadableSourceError as error:
        raise ConfigError(str(error), run=f"python3 -m py_compile {file}") from error
    lists = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            lines = _listed(given.get("install_requires"), lists, file)
            extras = _extras(given.get("extras_require"), lists, file)
            if lines is None:
                return None
            wanted, name = given.get("python_requires"), given.get("name")
            python = wanted.value if isinstance(wanted, ast.Constant) else ""
            own = (
                canonicalize_name(name.value)
                if isinstance(name, ast.Constant) and isinstance(name.value, str)
                else None
            )
            return Declared(lines, python_specifier(python, "setup.py: python_requires"), extras, own)
    return None


def _listed(node: ast.AST | None, lists: Mapping[str, ast.expr], file: Path) -> tuple[str, ...] | None:
    """The requirements of a literal list, or of a variable that holds one; None for anything else."""
    if isinstance(node, ast.Name):
        node = lists.get(node.id)
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    if len(node.elts) > MOST_LINES:
        raise ConfigError(f"setup.py:{node.lineno}: more packages than any image could contain", run=f"wc -l {file}")
    texts = [(item.value, item.lineno) for item in node.elts if isinstance(item, ast.Constant)]
    return tuple(checked_requirement(str(text), f"setup.py:{line}") for text, line in texts)


def _extras(node: ast.AST | None, lists: Mapping[str, ast.expr], file: Path) -> dict[str, tuple[str, ...]] | None:
    """Of a literal ``{"dev": ["pytest"]}``; None where it is computed."""
    if node is None:
        return {}
    if isinstance(node, ast.Name):
        node = lists.get(node.id)
    if not isinstance(node, ast.Dict):
        return None
    found: dict[str, tuple[str, ...]] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        lines = _listed(value, lists, file)
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)) or lines is None:
            return None
        found[canonicalize_name(key.value)] = lines
    return found
