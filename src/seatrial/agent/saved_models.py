"""What the target saved where the host cannot look: model files on a volume of a cluster, told as evidence."""

import itertools
import os
from typing import Any, Dict, Iterator, List

from seatrial.events import MODEL_SUFFIXES

#: Entries of folders, at most: a target can make any number.
MOST_LOOKED_AT = 200_000

#: Of the newest files. A line of evidence stays short.
MOST = 20

#: File times come from the kernel's coarse clock, up to a tick late; a network volume's server has a clock of its own.
SLACK_S = 2.0


def models(folder: str, started: float) -> List[Dict[str, Any]]:
    """``{"path", "bytes"}`` of the model files written since ``started`` (Unix time), the newest first.

    Paths are relative to ``folder``. Our own folders there, which begin with a dot, are left out.
    """
    found = [(modified, path, size) for path, size, modified in _files(folder) if modified >= started - SLACK_S]
    newest = sorted(found, reverse=True)[:MOST]
    return [{"path": os.path.relpath(path, folder), "bytes": size} for _, path, size in newest]


def _files(folder: str) -> Iterator[Any]:
    """Regular files by suffix. The folder is the target's: no link is followed, and there is an end to it."""
    left, looked_at = [folder], 0
    while left and looked_at < MOST_LOOKED_AT:
        parent = left.pop()
        try:
            with os.scandir(parent) as found:
                entries = list(itertools.islice(found, MOST_LOOKED_AT - looked_at))
        except OSError:  # gone since, or too deep for a path
            continue
        for entry in entries:
            looked_at += 1
            try:
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith("."):
                        left.append(entry.path)
                elif entry.name.lower().endswith(MODEL_SUFFIXES) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield entry.path, status.st_size, status.st_mtime
            except OSError:
                continue
