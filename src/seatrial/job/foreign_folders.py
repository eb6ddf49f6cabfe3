"""Folders of a project whose scripts are not the user's: environments, installed packages, what a build made."""

from __future__ import annotations

from pathlib import Path

from seatrial.job.reading.modules import is_file

_NAMES = {"node_modules", "site-packages", "venv", "env", "build", "dist"}

#: What tells an environment whatever its name is: Python's own, and conda's.
_MARKS = ("pyvenv.cfg", "conda-meta/history")


def is_foreign(folder: Path) -> bool:
    """By its name, or by what is in it."""
    if folder.name.startswith((".", "__")) or folder.name in _NAMES:
        return True
    return any(is_file(folder / mark) for mark in _MARKS)
