"""Modules under other names: a script of a package as ``-m`` takes it, a command that installing the project makes."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from seatrial.job.reading.modules import find_module, is_file
from seatrial.system.toml_file import read_toml


def module_name(script: str, project: Path) -> str:
    """``pkg.train`` of ``src/pkg/train.py`` or ``pkg/train.py``: what Python calls it that starts in the project."""
    path = PurePosixPath(script)
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" and not is_file(project / "src/__init__.py") else parts)


def console_script(word: str, project: Path) -> str | None:
    """The project's own module that a command of ``[project.scripts]`` calls, or None."""
    file = project / "pyproject.toml"
    if not is_file(file):
        return None
    table = read_toml(file, inside=project).get("project")
    scripts = table.get("scripts") if isinstance(table, dict) else None
    called = scripts.get(word) if isinstance(scripts, dict) else None
    module = called.partition(":")[0].strip() if isinstance(called, str) else ""
    return module if module and find_module(module, [project, project / "src"], main=True) else None
