"""A module that was not found: one of the project's own is not a package to install."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import CONTAINER_PROJECT, Plan
from seatrial.job.reading.modules import locate_module

_NAMED = re.compile(r"No module named '([\w.]+)'")

#: Folders of a project that are looked into, and how deep.
_MOST_FOLDERS, _DEEPEST = 500, 3


def about_the_project(finding: Finding, plan: Plan) -> Finding:
    """The finding itself, unless the missing module lies in the project: then where it lies, as the target sees it."""
    if finding.id != "python-module-missing":
        return finding
    named = next((match for line in finding.evidence if (match := _NAMED.search(line))), None)
    folder = _folder_of(named[1].partition(".")[0], plan.job.project) if named else None
    if named is None or folder is None:
        return finding
    root = str(plan.job.project) if plan.on_the_host else CONTAINER_PROJECT
    seen = root if str(folder) == "." else f"{root}/{folder}"
    return by_id("project-module-not-on-path").finding(finding.evidence, values={"module": named[1], "folder": seen})


def _folder_of(module: str, project: Path) -> Path | None:
    """The folder that a module lies in, relative to the project; the nearest to its top."""
    found = locate_module(module, list(islice(_folders(project), _MOST_FOLDERS)))
    return found[1].relative_to(project) if found else None


def _folders(project: Path) -> Iterator[Path]:
    level = [project]
    for _ in range(_DEEPEST + 1):
        yield from level
        level = [inside for folder in level for inside in _inside(folder)]


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(
            path
            for path in islice(folder.iterdir(), _MOST_FOLDERS)
            if not path.name.startswith((".", "__")) and not path.is_symlink() and path.is_dir()
        )
    except OSError:
        return []
