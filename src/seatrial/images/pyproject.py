"""pyproject.toml and uv.lock: what a project depends on, and the versions that its lock file fixes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from seatrial.errors import ConfigError
from seatrial.images.requirements import canonical_name, checked_requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Packages whose versions belong to one build of torch, which may not be the build that was locked.
_OF_A_BUILD = ("nvidia-", "cuda-", "triton", "pytorch-triton")


def pyproject_requirements(file: Path, imported: Iterable[str]) -> tuple[str, ...] | None:
    """``[project] dependencies``, and of its extras what is imported; None when it declares no dependencies.

    Raises ConfigError naming ``file:line``.
    """
    text = file.read_text(encoding="utf-8")
    table = _table(file, text).get("project", {})
    if "dependencies" not in table:
        return None
    required = _checked_list(table["dependencies"], "project.dependencies", text)
    have = {canonical_name(line) for line in required}
    wanted = {canonical_name(package) for package in imported} - have
    extras = table.get("optional-dependencies", {})
    optional = [
        line
        for extra in sorted(extras)
        for line in _checked_list(extras[extra], f"project.optional-dependencies.{extra}", text)
    ]
    for line in optional:
        if (name := canonical_name(line)) in wanted:
            required.append(line)
            wanted.remove(name)
    return tuple(required)


def requires_python(file: Path) -> SpecifierSet:
    """``[project] requires-python``; empty where the file or the key is not there."""
    if not file.is_file():
        return SpecifierSet()
    value = _table(file, file.read_text(encoding="utf-8")).get("project", {}).get("requires-python", "")
    return python_specifier(value, "pyproject.toml: project.requires-python")


def python_specifier(value: Any, place: str) -> SpecifierSet:
    """A requires-python as a specifier. Raises ConfigError that begins with ``place``."""
    try:
        return SpecifierSet(value)
    except (InvalidSpecifier, TypeError, AttributeError):
        raise ConfigError(f"{place}: {value!r} is no version specifier", run='write it like ">=3.10"') from None


def locked_versions(file: Path) -> tuple[str, ...]:
    """``name==version`` of the packages in uv.lock that come from an index and have one version; () without a file.

    Format: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile
    """
    if not file.is_file():
        return ()
    packages = _table(file, file.read_text(encoding="utf-8")).get("package", [])
    versions = Counter(str(package.get("name")) for package in packages)
    return tuple(
        sorted(
            f"{package['name']}=={package['version']}"
            for package in packages
            if "registry" in package.get("source", {})
            and "version" in package
            and versions[str(package["name"])] == 1
            and not str(package["name"]).startswith(_OF_A_BUILD)
        )
    )


def _table(file: Path, text: str) -> dict[str, Any]:
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file.name}: {error}", run=f"fix {file}") from error
    return table


def _checked_list(value: Any, key: str, text: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"pyproject.toml: {key} must be a list of strings, not {value!r}")
    return [checked_requirement(item, f"pyproject.toml:{_line_of(item, text)}") for item in value]


def _line_of(item: str, text: str) -> int:
    """Line of the first mention; TOML parsers keep none."""
    return text[: max(text.find(item), 0)].count("\n") + 1
