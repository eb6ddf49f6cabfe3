"""A module that was not found: one of the project's own is not a package to install."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.job.plan import Plan

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
    seen = plan.agent.workdir if str(folder) == "." else f"{plan.agent.workdir}/{folder}"
    return by_id("project-module-not-on-path").finding(finding.evidence, values={"module": named[1], "folder": seen})


def _folder_of(module: str, project: Path) -> Path | None:
    """The folder that a module lies in, relative to the project; the nearest to its top."""
    for folder in islice(_folders(project), _MOST_FOLDERS):
        try:
            if (folder / f"{module}.py").is_file() or (folder / module / "__init__.py").is_file():
                return folder.relative_to(project)
        except OSError:  # a name too long, a folder that may not be read
            continue
    return None


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
