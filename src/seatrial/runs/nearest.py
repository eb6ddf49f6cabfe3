"""The project whose runs are meant by someone who stands in one of its folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.runs.store import RunStore
from seatrial.system.typed_path import as_typed

#: A folder with one of these is a project of its own: runs of a folder around it are another's.
_ENDS = ("seatrial.toml", ".git")


def store_of(project: Path | None, environ: Mapping[str, str] | None = None) -> RunStore:
    """The store of the folder that ``--project`` names, of just that one; of the nearest where it names none.

    Raises UsageError: there is no such folder, and no runs are known of one that was there.
    """
    if project is None or project == Path():
        return nearest_store(Path(), environ)
    store = RunStore(project.absolute(), environ)
    if not project.is_dir() and not store.root.is_dir():
        there = next(parent for parent in project.absolute().parents if parent.is_dir())
        raise UsageError(f"There is no project folder {project}", run=f"ls {as_typed(there)}")
    return store


def nearest_store(folder: Path, environ: Mapping[str, str] | None = None) -> RunStore:
    """Of the folder itself or the nearest around it that has runs; of the folder itself where none has."""
    here = RunStore(folder.absolute(), environ)
    for around in (here.project, *here.project.parents):
        store = RunStore(around, environ)
        if store.root.is_dir() or os.path.lexists(store.places):
            return store
        if any(os.path.lexists(around / name) for name in _ENDS):
            break
    return here
