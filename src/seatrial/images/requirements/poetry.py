"""``[tool.poetry]`` of a pyproject.toml: all of it without ``[project]`` dependencies, before Poetry 2.0; groups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.requirements_files import MOST_LINES, checked_requirement
from seatrial.system.shown import shown

#: Characters of one constraint; poetry-core's parser is made for its author's own file.
_MOST_CHARACTERS = 500


def poetry_requirements(table: dict[str, Any], file: Path) -> tuple[list[str], list[str]] | None:
    """(what it depends on, what its groups and optional dependencies name), as pip's lines; None without a list.

    A dependency on a folder (``path``) is left out: it is the project's own, and mounted.

    Args:
        table: ``[tool.poetry]``.

    Raises ConfigError naming the key.
    """
    if not isinstance(table.get("dependencies"), dict):
        return None
    needed: list[str] = []
    optional: list[str] = []
    for line, is_optional in _lines(table["dependencies"], "tool.poetry.dependencies", file):
        (optional if is_optional else needed).append(line)
    return needed, optional + poetry_groups(table, file)


def poetry_groups(table: dict[str, Any], file: Path) -> list[str]:
    """What its groups name, as pip's lines: Poetry from 2.0 on has them beside ``[project]``. Raises ConfigError."""
    groups = {name: _inside(group, "dependencies") for name, group in _inside(table, "group").items()}
    groups["dev"] = {**_inside(table, "dev-dependencies"), **groups.get("dev", {})}
    return [
        line
        for name, group in groups.items()
        for line, _ in _lines(group, f"tool.poetry.group.{name}.dependencies", file)
    ]


def poetry_folders(table: dict[str, Any], project: Path) -> dict[str, Path]:
    """Canonical name → folder of each dependency that is one (``path``), of groups, too."""
    groups = [_inside(group, "dependencies") for group in _inside(table, "group").values()]
    listed = [_inside(table, "dependencies"), _inside(table, "dev-dependencies"), *groups]
    return {
        canonicalize_name(name): Path(os.path.normpath(project / wish["path"]))
        for dependencies in listed
        for name, wish in dependencies.items()
        if isinstance(wish, dict) and isinstance(wish.get("path"), str)
    }


def poetry_python(table: dict[str, Any], file: Path) -> SpecifierSet:
    """``python = "^3.9"`` as a specifier; empty where it says nothing. Raises ConfigError."""
    wish = _inside(table, "dependencies").get("python")
    if not isinstance(wish, str) or len(wish) > _MOST_CHARACTERS or wish.strip() == "*":
        return SpecifierSet()
    from poetry.core.constraints.version import parse_constraint  # much to import, and seldom needed
    from poetry.core.constraints.version.exceptions import ParseConstraintError

    try:
        return SpecifierSet(str(parse_constraint(wish)).rpartition("||")[2].strip())
    except (ParseConstraintError, InvalidSpecifier):
        raise _wrong(file, "tool.poetry.dependencies.python", wish) from None


def _lines(dependencies: dict[str, Any], key: str, file: Path) -> Iterator[tuple[str, bool]]:
    from poetry.core.factory import Factory

    if len(dependencies) > MOST_LINES:
        raise ConfigError(f"{file.name}: {key} has more entries than any image could contain", run=f"wc -l {file}")
    for name, wish in dependencies.items():
        for each in wish if isinstance(wish, list) else [wish]:
            if name.lower() == "python" or (isinstance(each, dict) and {"path", "file"} & each.keys()):
                continue
            try:
                if not isinstance(each, str | dict) or len(str(each)) > _MOST_CHARACTERS:
                    raise ValueError
                dependency = Factory.create_dependency(name, each)
                text = dependency.to_pep_508()
            except Exception:  # noqa: BLE001  # poetry-core has no error class of its own for a table of nonsense
                raise _wrong(file, f"{key}.{name}", each) from None
            optional = isinstance(each, dict) and each.get("optional") is True
            yield checked_requirement(_one_range(text), f"{file.name}: {key}"), optional


def _one_range(text: str) -> str:
    """``a (>=1,<2 || >=3,<4)`` → ``a (>=3,<4)``: pip's language has no or, so the newest range is taken."""
    if "||" not in text:
        return text
    before, _, rest = text.partition("(")
    return f"{before}({rest.rpartition('||')[2].strip()}"


def _inside(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, dict) else {}


def _wrong(file: Path, key: str, value: object) -> ConfigError:
    return ConfigError(f"{file.name}: {key}: {shown(value)} is no version that Poetry knows", run="poetry check")
