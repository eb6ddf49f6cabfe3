"""pyproject.toml and uv.lock: what a project depends on, and the versions that its lock file fixes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import MOST_LINES, Declared, canonical_name, checked_requirement
from seatrial.images.requirements.poetry import poetry_folders, poetry_groups, poetry_python, poetry_requirements
from seatrial.images.requirements.uv_sources import folders_of_its_own, sourced, uv_sources
from seatrial.system import toml_file
from seatrial.system.project_files import is_there, read_text
from seatrial.system.text import shown

#: uv.lock of a project with hundreds of packages has two million bytes, most of them URLs and hashes.
_MAX_LOCK_BYTES = 16_000_000

#: Of a specifier; versions of thousands of digits are read only when they are compared.
_MOST_CHARACTERS = 500

#: An entry of an array in uv.lock: a wheel, a dependency. Nothing in them is read here.
_ARRAY_ENTRY = re.compile(r"^    \{.*\n", re.MULTILINE)

#: Packages whose versions belong to one build of torch, which may not be the build that was locked.
_OF_A_BUILD = ("nvidia-", "cuda-", "triton", "pytorch-triton")


def pyproject_requirements(file: Path, imported: Iterable[str]) -> tuple[str, ...] | None:
    """``[project] dependencies``, and of its extras and groups what is imported; None when it declares no dependencies.

    Of ``[tool.poetry]`` likewise, where ``[project]`` lists none.

    Raises ConfigError naming ``file:line``.
    """
    text, whole = _tables(file)
    table = _project(whole, file)
    sources = uv_sources(whole, file.parent)
    groups = _group_lines(whole, file, text, sources)
    if "dependencies" not in table:
        listed = poetry_requirements(_poetry(whole), file)
        if listed is None:
            return tuple(_imported(groups, (), imported)) or None
        return (*listed[0], *_imported((*listed[1], *groups), listed[0], imported))
    required = _listed(table["dependencies"], "project.dependencies", file, text, sources)
    extras = _extras(table, file)
    optional = [
        line
        for extra in sorted(extras)
        for line in _listed(extras[extra], f"project.optional-dependencies.{extra}", file, text, sources)
    ]
    of_poetry = poetry_groups(_poetry(whole), file)
    return (*required, *_imported((*optional, *groups, *of_poetry), required, imported))


def _group_lines(whole: dict[str, Any], file: Path, text: str, sources: dict[str, Any]) -> list[str]:
    """Read ``[dependency-groups]`` and uv's older ``dev-dependencies``; a group inside a group is read by itself.

    Format: https://packaging.python.org/en/latest/specifications/dependency-groups/
    """
    groups = _table_of(whole, "dependency-groups")
    lists = {f"dependency-groups.{name}": lines for name, lines in groups.items()}
    lists["tool.uv.dev-dependencies"] = _table_of(_table_of(whole, "tool"), "uv").get("dev-dependencies")
    return [
        line
        for key, lines in lists.items()
        if isinstance(lines, list)
        for line in _listed([each for each in lines if not isinstance(each, dict)], key, file, text, sources)
    ]


def _imported(optional: Iterable[str], required: Iterable[str], imported: Iterable[str]) -> Iterator[str]:
    """Return the first optional line of each package that is imported and not required."""
    wanted = {canonical_name(package) for package in imported} - {canonical_name(line) for line in required}
    for line in optional:
        if (name := canonical_name(line)) in wanted:
            wanted.remove(name)
            yield line


def declared(file: Path) -> Declared | None:
    """Read ``[project]`` or Poetry's table; None if it declares no dependencies.

    Raises ConfigError naming ``file:line``.
    """
    text, whole = _tables(file)
    table = _project(whole, file)
    if "dependencies" not in table:
        poetry = poetry_requirements(_poetry(whole), file)
        return None if poetry is None else Declared(tuple(poetry[0]), requires_python(file), extras=None)
    extras, sources = _extras(table, file), uv_sources(whole, file.parent)
    dynamic, name = table.get("dynamic"), table.get("name")
    computed = isinstance(dynamic, list) and "optional-dependencies" in dynamic
    return Declared(
        tuple(_listed(table["dependencies"], "project.dependencies", file, text, sources)),
        requires_python(file),
        None
        if computed
        else {
            canonicalize_name(extra): tuple(
                _listed(lines, f"project.optional-dependencies.{extra}", file, text, sources)
            )
            for extra, lines in extras.items()
        },
        canonicalize_name(name) if isinstance(name, str) else None,
    )


def own_packages(file: Path) -> dict[str, Path | None]:
    """Canonical name → folder of each package that the project takes from a folder; none without a file.

    uv's workspaces and paths, and Poetry's paths. The folder is None where it is not found.
    """
    if not is_there(file):
        return {}
    _, whole = _tables(file)
    return {
        **poetry_folders(_poetry(whole), file.parent),
        **folders_of_its_own(uv_sources(whole, file.parent), file.parent),
    }


def _extras(table: dict[str, Any], file: Path) -> dict[str, Any]:
    extras = table.get("optional-dependencies", {})
    if not isinstance(extras, dict):
        raise _wrong("project.optional-dependencies", "a table", extras, file)
    return extras


def requires_python(file: Path) -> SpecifierSet:
    """``[project] requires-python``; empty where the file or the key is not there."""
    if not is_there(file):
        return SpecifierSet()
    _, whole = _tables(file)
    value = _project(whole, file).get("requires-python")
    if value is None:
        return poetry_python(_poetry(whole), file)
    return python_specifier(value, "pyproject.toml: project.requires-python")


def python_specifier(value: Any, place: str) -> SpecifierSet:
    """A requires-python as a specifier. Raises ConfigError that begins with ``place``."""
    try:
        if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:  # a list it takes, too, and reads it later
            raise ValueError
        return SpecifierSet(value)
    except ValueError:  # InvalidSpecifier is one
        raise ConfigError(
            f"{place}: {shown(value)} is not a valid version specifier", run='write it like ">=3.10"'
        ) from None


def locked_versions(file: Path) -> tuple[str, ...]:
    """``name==version`` of the packages in a lock file that come from an index and have one version; () without a file.

    uv.lock, poetry.lock and pdm.lock have the same tables of ``[[package]]``. Where a package comes from stands in
    its source: uv names each, the others only those that are from elsewhere.

    Formats: https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile,
    https://python-poetry.org/docs/basic-usage/#installing-with-poetrylock
    """
    if not is_there(file):
        return ()
    text = _ARRAY_ENTRY.sub("", read_text(file, inside=file.parent, limit_bytes=_MAX_LOCK_BYTES))
    if len(text) > toml_file.MAX_BYTES:
        raise ConfigError(f"{file.name}: more packages than any image could contain", run=f"ls -l {file}")
    packages = toml_file.parse_toml(text, file).get("package", [])
    if not isinstance(packages, list) or not all(isinstance(package, dict) for package in packages):
        raise ConfigError(f"{file.name}: package must be a list of tables", run=f"ls -l {file}")
    versions = Counter(str(package.get("name")) for package in packages)
    return tuple(
        sorted(
            checked_requirement(f"{package['name']}=={package['version']}", file.name)
            for package in packages
            if _from_an_index(package, file.name)
            and {"name", "version"} <= package.keys()
            and versions[str(package["name"])] == 1
            and not str(package["name"]).startswith(_OF_A_BUILD)
        )
    )


def _from_an_index(package: dict[str, Any], lock: str) -> bool:
    """uv writes a source for each package; Poetry and PDM for those that are not from the index of all."""
    source = _table_of(package, "source")
    return "registry" in source if lock == "uv.lock" else not source and not {"path", "git", "url"} & package.keys()


def _table_of(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else {}


def _tables(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the file's text and its table."""
    text = read_text(file, inside=file.parent, limit_bytes=toml_file.MAX_BYTES)
    return text, toml_file.parse_toml(text, file)


def _project(whole: dict[str, Any], file: Path) -> dict[str, Any]:
    table = whole.get("project", {})
    if not isinstance(table, dict):
        raise _wrong("project", "a table", table, file)
    return table


def _poetry(whole: dict[str, Any]) -> dict[str, Any]:
    return _table_of(_table_of(whole, "tool"), "poetry")


def _wrong(key: str, expected: str, value: Any, file: Path) -> ConfigError:
    return ConfigError(f"{file.name}: {key} must be {expected}, not {shown(value)}", run=f"${{EDITOR:-vi}} {file}")


def _checked_list(value: Any, key: str, file: Path, text: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(key, "a list of strings", value, file)
    if len(value) > MOST_LINES:
        raise ConfigError(
            f"{file.name}: {key} has {len(value)} entries, more than any image could contain", run=f"wc -l {file}"
        )
    return [checked_requirement(item, f"{file.name}:{_line_of(item, text)}") for item in value]


def _listed(value: Any, key: str, file: Path, text: str, sources: dict[str, Any]) -> list[str]:
    return sourced(_checked_list(value, key, file, text), sources, f"{file.name}: tool.uv.sources")


def _line_of(item: str, text: str) -> int:
    """Line of the first mention; TOML parsers keep none."""
    return text[: max(text.find(item), 0)].count("\n") + 1
