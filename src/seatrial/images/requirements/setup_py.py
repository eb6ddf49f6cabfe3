"""setup.py, read and never run: the literal ``install_requires`` and ``python_requires`` of its setup() call."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from seatrial.errors import ConfigError
from seatrial.images.requirements.pyproject import python_specifier
from seatrial.images.requirements.requirements_files import MOST_LINES, checked_requirement
from seatrial.system.project_files import read_bytes
from seatrial.system.source import MAX_BYTES, MOST_MARKS, UnreadableSourceError, marks, parse_source


@dataclass(frozen=True)
class Setup:
    """What setup.py asks for."""

    lines: tuple[str, ...]
    python: SpecifierSet


def read_setup(file: Path) -> Setup | None:
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
            listed = given.get("install_requires")
            if isinstance(listed, ast.Name):
                listed = lists.get(listed.id)
            if not isinstance(listed, ast.List | ast.Tuple):
                return None
            if len(listed.elts) > MOST_LINES:
                raise ConfigError(
                    f"setup.py:{listed.lineno}: more packages than any image could contain", run=f"wc -l {file}"
                )
            texts = [(item.value, item.lineno) for item in listed.elts if isinstance(item, ast.Constant)]
            lines = tuple(checked_requirement(str(text), f"setup.py:{line}") for text, line in texts)
            wanted = given.get("python_requires")
            python = wanted.value if isinstance(wanted, ast.Constant) else ""
            return Setup(lines, python_specifier(python, "setup.py: python_requires"))
    return None
