"""Where mounts come from: a link in the project may be the work of a script that ran there, and does not lead out.

Who may write the project may turn ``./models`` into a link to ``~/.ssh``, and the next run would hand that over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from seatrial.errors import UntrustedPathError, UsageError
from seatrial.job.plan import Mount
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed


def real_source(source: Path, project: Path, flag: str, *, state: Path) -> Path:
    """A mount's source with links resolved.

    Args:
        source, project: absolute. flag: as the user wrote it, for the sentence.
        state: the user's state folder, which no container sees.

    Raises UsageError: it lies in the project and is, or goes through, a link out of it; or it is the state folder.
    """
    lexical, root = Path(os.path.normpath(source)), project.resolve()
    real = Path(os.path.realpath(source))  # Path.resolve raises for a link that leads to itself
    inside = lexical.is_relative_to(project) or lexical.is_relative_to(root)
    if inside and not real.is_relative_to(root):
        raise UsageError(
            f"{flag} {_shown(lexical, project)} points outside the project, to {real}",
            cause="It is a symlink, which any script that ran in the project could have created",
            run=f"seatrial run … {flag} {as_typed(real)}   # if that is the folder you mean",
        )
    if real.is_relative_to(state):
        raise UsageError(
            f"{flag} {real} is in seatrial's own state folder, which is never mounted",
            run=f"seatrial run … {flag} /another/folder",
        )
    return real


def check_sources(mounts: Iterable[Mount], project: Path) -> None:
    """At the moment of use: what lies in the project is still where it was, behind no link.

    Raises UntrustedPathError.
    """
    root = project.resolve()
    for mount in mounts:
        if not mount.source.is_relative_to(root) or mount.source == root:
            continue
        parts = mount.source.relative_to(root).parts
        try:
            with nofollow.folder(root, *parts[:-1]) as parent:
                is_link = stat.S_ISLNK(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            continue  # the engine says so, in its own words
        if is_link:
            raise UntrustedPathError(
                f"{mount.source} became a symlink after planning", run=f"ls -ld {as_typed(mount.source)}"
            )


def make_folder_inside(folder: Path, project: Path) -> bool:
    """Make a folder of the project, and those above it, through no link; False for one outside of it.

    Raises UntrustedPathError, DiskError.
    """
    root = project.resolve()
    if not folder.is_relative_to(root):
        return False
    with nofollow.folder(root, *folder.relative_to(root).parts, make=True):
        return True


def _shown(path: Path, project: Path) -> str:
    return f"./{path.relative_to(project)}" if path.is_relative_to(project) else str(path)
