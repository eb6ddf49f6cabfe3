"""What a script says of itself in a comment: ``# /// script``, as uv run and pipx run read it.

Format: https://packaging.python.org/en/latest/specifications/inline-script-metadata/
"""

from __future__ import annotations

from pathlib import Path

from packaging.specifiers import SpecifierSet

from seatrial.errors import ConfigError
from seatrial.images.requirements.declared import Declared
from seatrial.images.requirements.pyproject import python_specifier
from seatrial.images.requirements.requirements_files import MOST_LINES, checked_requirement
from seatrial.images.requirements.uv_sources import sourced, uv_sources
from seatrial.system import toml_file
from seatrial.system.project_files import read_bytes
from seatrial.system.shown import shown
from seatrial.system.typed_path import as_typed

_BEGIN, _END = "# /// script", "# ///"


def read_inline(file: Path, project: Path) -> Declared | None:
    """The dependencies and the Python that a script names, or None where it names none. Raises ConfigError."""
    text = _block(read_bytes(file, inside=project).decode("utf-8", "replace").splitlines())
    if text is None:
        return None
    table = toml_file.parse_toml(text, file)
    listed = table.get("dependencies")
    if listed is None:
        return None
    is_list = isinstance(listed, list) and len(listed) <= MOST_LINES
    if not is_list or not all(isinstance(line, str) for line in listed):
        raise ConfigError(
            f"{file.name}: dependencies of {_BEGIN} must be a list of requirements, not {shown(listed)}",
            run=f"${{EDITOR:-vi}} {as_typed(file)}",
        )
    place = f"{file.name}: {_BEGIN}"
    lines = sourced([checked_requirement(line, place) for line in listed], uv_sources(table, file.parent), place)
    wish = table.get("requires-python")
    python = SpecifierSet() if wish is None else python_specifier(wish, f"{file.name}: requires-python")
    return Declared(tuple(lines), python)


def _block(lines: list[str]) -> str | None:
    """The TOML of the first such comment; None without one, or where it does not end."""
    if _BEGIN not in lines:
        return None
    inside: list[str] = []
    for line in lines[lines.index(_BEGIN) + 1 :]:
        if line == _END:
            return "\n".join(inside)
        if line != "#" and not line.startswith("# "):
            return None
        inside.append(line[2:])
    return None
