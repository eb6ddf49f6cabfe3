"""Read ``[tool.poetry]`` of a pyproject.toml: its dependencies and groups, as pip's lines.

Format: https://python-poetry.org/docs/dependency-specification/
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import MOST_LINES, checked_requirement
from seatrial.system.text import shown

#: Characters of one constraint.
_MOST_CHARACTERS = 500
_PART = re.compile(r"(?P<sign>\^|~(?!=)|~=|===|==|=|!=|>=|<=|>|<)?\s*(?P<version>[vV]?\d[\w.+!-]*?(?:\.\*)?)$")


def poetry_requirements(table: dict[str, Any], file: Path) -> tuple[list[str], list[str]] | None:
    """Return (dependencies, those of groups and optional ones); None if the table has no list of dependencies.

    A dependency on a folder (``path``) is left out: it belongs to the project, and is mounted.

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
    """Return the dependencies of all groups; from Poetry 2.0 on ``[project]`` may exist as well. Raises ConfigError."""
    groups = {name: _inside(group, "dependencies") for name, group in _inside(table, "group").items()}
    groups["dev"] = {**_inside(table, "dev-dependencies"), **groups.get("dev", {})}
    return [
        line
        for name, group in groups.items()
        for line, _ in _lines(group, f"tool.poetry.group.{name}.dependencies", file)
    ]


def poetry_folders(table: dict[str, Any], project: Path) -> dict[str, Path]:
    """Return canonical name → folder of each dependency that is a folder (``path``), groups included."""
    groups = [_inside(group, "dependencies") for group in _inside(table, "group").values()]
    listed = [_inside(table, "dependencies"), _inside(table, "dev-dependencies"), *groups]
    return {
        canonicalize_name(name): Path(os.path.normpath(project / wish["path"]))
        for dependencies in listed
        for name, wish in dependencies.items()
        if isinstance(wish, dict) and isinstance(wish.get("path"), str)
    }


def poetry_python(table: dict[str, Any], file: Path) -> SpecifierSet:
    """Return ``python = "^3.9"`` as a specifier; empty if the key is absent. Raises ConfigError."""
    wish = _inside(table, "dependencies").get("python")
    if not isinstance(wish, str) or len(wish) > _MOST_CHARACTERS:
        return SpecifierSet()
    try:
        return _specifier(wish)
    except ValueError:
        raise _wrong(file, "tool.poetry.dependencies.python", wish) from None


def _lines(dependencies: dict[str, Any], key: str, file: Path) -> Iterator[tuple[str, bool]]:
    if len(dependencies) > MOST_LINES:
        raise ConfigError(f"{file.name}: {key} has more entries than any image could contain", run=f"wc -l {file}")
    for name, wish in dependencies.items():
        for each in wish if isinstance(wish, list) else [wish]:
            if name.lower() == "python" or (isinstance(each, dict) and {"path", "file"} & each.keys()):
                continue
            try:
                if not isinstance(each, str | dict) or len(str(each)) > _MOST_CHARACTERS:
                    raise ValueError
                line = str(Requirement(_line(name, each if isinstance(each, dict) else {"version": each})))
            except (ValueError, TypeError, AttributeError):
                raise _wrong(file, f"{key}.{name}", each) from None
            optional = isinstance(each, dict) and each.get("optional") is True
            yield checked_requirement(line, f"{file.name}: {key}"), optional


def _line(name: str, wish: dict[str, Any]) -> str:
    """Write one dependency in pip's language. Raises ValueError, TypeError or AttributeError for nonsense."""
    text = name + (f"[{','.join(wish['extras'])}]" if wish.get("extras") else "")
    if "git" in wish:
        at = next((wish[key] for key in ("rev", "tag", "branch") if key in wish), None)
        text += f" @ git+{wish['git']}" + (f"@{at}" if at else "")
        text += f"#subdirectory={wish['subdirectory']}" if "subdirectory" in wish else ""
    elif "url" in wish:
        text += f" @ {wish['url']}"
    else:
        text += str(_specifier(wish.get("version", "*")))
    markers = [f"({wish['markers']})"] if "markers" in wish else []
    for key, variable in (("python", "python_version"), ("platform", "sys_platform")):
        if key in wish and key == "python":
            markers += [f'{variable} {each.operator} "{each.version}"' for each in _specifier(wish[key])]
        elif key in wish:
            markers.append(f'{variable} == "{wish[key]}"')
    return text + (f" ; {' and '.join(markers)}" if markers else "")


def _specifier(wish: str) -> SpecifierSet:
    """Translate Poetry's constraint; of alternatives (``||``) the last: pip's language has no or. Raises ValueError."""
    last = re.split(r"\|\|?", wish)[-1].strip()
    if last in ("", "*"):
        return SpecifierSet()
    parts = [each for each in re.split(r"\s*,\s*|(?<=[\w*])\s+(?=[\^~=!<>])", last) if each]
    return SpecifierSet(",".join(map(_part, parts)))


def _part(text: str) -> str:
    """Translate ``^1.2``, ``~1.2``, ``1.2.*`` or a plain comparison. Raises ValueError."""
    if text == "*":
        return ""
    if not (match := _PART.fullmatch(text)):
        raise ValueError(text)
    sign, version = match["sign"] or "==", match["version"]
    if sign == "=":
        sign = "=="
    if sign not in ("^", "~"):
        return f"{sign}{version}"
    release = Version(version).release
    if sign == "^":  # up to the next change of the first part that is not 0
        at = next((place for place, part in enumerate(release) if part), len(release) - 1)
    else:
        at = min(1, len(release) - 1)
    return f">={version},<{'.'.join(map(str, (*release[:at], release[at] + 1)))}"


def _inside(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, dict) else {}


def _wrong(file: Path, key: str, value: object) -> ConfigError:
    return ConfigError(f"{file.name}: {key}: {shown(value)} is not a version that Poetry knows", run="poetry check")
