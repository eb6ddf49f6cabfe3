"""What the target saved where the host cannot look: model files on a volume of a cluster, told as evidence."""

import itertools
import os
from typing import Any, Callable, Dict, Iterator, List, Tuple

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
    every = files(folder, lambda name: name.lower().endswith(MODEL_SUFFIXES), _is_ours)
    found = [(modified, path, size) for path, size, modified, _ in every if modified >= started - SLACK_S]
    newest = sorted(found, reverse=True)[:MOST]
    return [{"path": os.path.relpath(path, folder), "bytes": size} for _, path, size in newest]


def _is_ours(folder: str) -> bool:
    return os.path.basename(folder).startswith(".")


def files(
    folder: str, wanted: Callable[[str], bool], passes_over: Callable[[str], bool]
) -> Iterator[Tuple[str, int, float, float]]:
    """(path, bytes, times of the last modification and change) of regular files.

    The folder is the target's: no link is followed, and there is an end to it.

    Args:
        wanted: whether a file of this name counts. passes_over: whether a folder below, by its path, is left out.
    """
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
                    if not passes_over(entry.path):
                        left.append(entry.path)
                elif wanted(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield entry.path, status.st_size, status.st_mtime, status.st_ctime
            except OSError:
                continue
