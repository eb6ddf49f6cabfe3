"""The project whose runs are meant by someone who stands in one of its folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from seatrial.runs.store import RunStore

#: A folder with one of these is a project of its own: runs of a folder around it are another's.
_ENDS = ("seatrial.toml", ".git")


def store_of(project: Path | None, environ: Mapping[str, str] | None = None) -> RunStore:
    """The store of the folder that ``--project`` names, of just that one; of the nearest where it names none."""
    return nearest_store(Path(), environ) if project in (None, Path()) else RunStore(project.absolute(), environ)


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
