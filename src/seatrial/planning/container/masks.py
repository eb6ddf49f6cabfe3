"""Masks: empty folders over what no container may see of a folder that it is given."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from seatrial.job.plan import Mount, Tmpfs

#: Nothing can be written into it, and it takes no memory.
OPTIONS = "ro,size=4k,mode=0555"


def masks(mounts: Sequence[Mount], hidden: Iterable[Path]) -> tuple[Tmpfs, ...]:
    """A mask for each place in the container where one of ``hidden`` would show through a mount.

    Args:
        hidden: absolute host folders. One that is itself what is mounted is not masked: it is meant.
    """
    found = {}
    for folder in hidden:
        real = _real(folder)
        for mount in mounts:
            source = _real(mount.source)
            if real != source and real.is_relative_to(source):
                target = str(PurePosixPath(mount.target) / PurePosixPath(real.relative_to(source)))
                found[target] = Tmpfs(target=target, options=OPTIONS)
    return tuple(found[target] for target in sorted(found))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises for a link that leads to itself
