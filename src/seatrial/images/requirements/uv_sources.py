"""``[tool.uv.sources]``: packages that a project takes from a folder, a repository or an address, not from an index.

Format: https://docs.astral.sh/uv/concepts/projects/dependencies/#dependency-sources
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import canonical_name, checked_requirement, parsed
from seatrial.system import toml_file
from seatrial.system.project_files import is_there, read_text

#: Folders above a project in which its workspace is looked for, and folders of a workspace that are looked at.
_MOST_ABOVE, _MOST_MEMBERS = 5, 200


def sourced(lines: Iterable[str], sources: Mapping[str, Any], place: str) -> list[str]:
    """Add the address to lines from a repository or a URL, and leave out lines from a folder.

    A folder is the project's own. The index may have a package of that name, and it would be a stranger's.

    Raises ConfigError that begins with ``place``.
    """
    found = []
    for line in lines:
        requirement, source = parsed(line), _first(sources.get(canonical_name(line) or ""))
        if requirement is None or requirement.url or not source:
            found.append(line)
        elif not is_folder_of_its_own(source):
            found.append(checked_requirement(_with_address(requirement, source) or line, place))
    return found


def uv_sources(whole: Mapping[str, Any], project: Path) -> dict[str, Any]:
    """Canonical name → its source, as the workspace that the project is in has it, or its own pyproject.toml.

    Raises ConfigError: the workspace's pyproject.toml cannot be read.
    """
    _, outer = _workspace(project)
    tables = (_inside(_inside(table, "tool", "uv"), "sources") for table in (outer, whole))
    return {canonicalize_name(name): source for table in tables for name, source in table.items()}


def folders_of_its_own(sources: Mapping[str, Any], project: Path) -> dict[str, Path | None]:
    """Return canonical name → folder of each package that comes from a folder; None if it is not found."""
    own = {name: _first(source) for name, source in sources.items() if is_folder_of_its_own(_first(source))}
    members = _members(project) if any("workspace" in source for source in own.values()) else {}
    return {
        name: Path(os.path.normpath(project / source["path"])) if "path" in source else members.get(name)
        for name, source in own.items()
    }


def is_folder_of_its_own(source: Mapping[str, Any]) -> bool:
    """Return True for a member of the workspace, a folder or a wheel of the project."""
    return source.get("workspace") is True or isinstance(source.get("path"), str)


def _first(source: Any) -> dict[str, Any]:
    """Return the first of several sources, folders before all others: their names may belong to somebody else."""
    each = [one for one in (source if isinstance(source, list) else [source]) if isinstance(one, dict)]
    return next(filter(is_folder_of_its_own, each), each[0] if each else {})


def _with_address(requirement: Requirement, source: Mapping[str, Any]) -> str | None:
    """``name @ git+https://…``; None where it comes from an index."""
    words = {key: value for key, value in source.items() if isinstance(value, str)}
    if "git" in words:
        at = next((words[key] for key in ("rev", "tag", "branch") if key in words), None)
        address = f"git+{words['git'].removeprefix('git+')}" + (f"@{at}" if at else "")
    elif "url" in words:
        address = words["url"]
    else:
        return None
    if "subdirectory" in words:
        address += f"#subdirectory={words['subdirectory']}"
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras} @ {address}" + (f" ; {requirement.marker}" if requirement.marker else "")


def _workspace(project: Path) -> tuple[Path, dict[str, Any]]:
    """Return the workspace's folder above a member, and its pyproject.toml's table; else the project's."""
    for folder in islice((project, *project.parents), _MOST_ABOVE):
        table = _read(folder / "pyproject.toml")
        if isinstance(_inside(table, "tool", "uv").get("workspace"), dict):
            return folder, table
    return project, {}


def _members(project: Path) -> dict[str, Path]:
    """Canonical name → folder of each member of the workspace that a project is in."""
    root, table = _workspace(project)
    patterns = _inside(table, "tool", "uv", "workspace").get("members", [])
    folders = islice(_matching(root, patterns if isinstance(patterns, list) else []), _MOST_MEMBERS)
    named = ((_inside(_read(folder / "pyproject.toml"), "project").get("name"), folder) for folder in (root, *folders))
    return {canonicalize_name(name): folder for name, folder in named if isinstance(name, str)}


def _matching(root: Path, patterns: Iterable[object]) -> Iterator[Path]:
    for pattern in patterns:
        if isinstance(pattern, str) and pattern and not pattern.startswith("/") and ".." not in pattern:
            yield from sorted(islice(root.glob(pattern), _MOST_MEMBERS))


def _read(file: Path) -> dict[str, Any]:
    """Return the table of a pyproject.toml; empty if it cannot be read: only uv checks it."""
    if not is_there(file):
        return {}
    try:
        return toml_file.parse_toml(read_text(file, inside=file.parent, limit_bytes=toml_file.MAX_BYTES), file)
    except ConfigError:
        return {}


def _inside(table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        value = table.get(key)
        table = value if isinstance(value, dict) else {}
    return dict(table)
