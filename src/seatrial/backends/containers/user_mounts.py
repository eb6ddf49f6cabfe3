"""``--mount SOURCE:TARGET[:ro|rw]``: parsed, checked, and put beside our own mounts."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from seatrial.backends.containers.mount_sources import real_source
from seatrial.errors import DataError, UsageError
from seatrial.job.plan import CONTAINER_PROJECT, Mount
from seatrial.system.typed_path import as_typed, from_here

#: What a mount may neither be nor lie in: ours, and what the engine itself fills.
RESERVED = ("/seatrial", "/proc", "/sys", "/dev")
#: Below /dev, but a folder that people do mount (a dataset in host memory).
ALLOWED_IN_RESERVED = ("/dev/shm",)


def parse_mount(text: str) -> Mount:
    """``./weights:/weights:ro`` → Mount. Raises UsageError."""
    mount = Mount.parse(text)
    if mount is None:
        raise UsageError(
            f"--mount {text!r} is not SOURCE:TARGET[:ro|rw]",
            cause="a path with a colon in it cannot be mounted this way" if text.count(":") > 1 else None,
            run="seatrial run … --mount ./weights:/weights:ro",
        )
    return mount


def checked_mount(mount: Mount, project: Path, state: Path, *, made: bool = False) -> Mount:
    """The mount with links in its source resolved; a relative source is the project's.

    Args:
        made: a folder of the project that is not there is made before the start (home.host_files).

    Raises UsageError when the source is not there or leads out of the project by a link, or the target is not absolute.
    """
    source = real_source(project / mount.source.expanduser(), project, "--mount", state=state)
    target = PurePosixPath(mount.target)
    if not target.is_absolute() or ".." in target.parts:
        raise UsageError(
            f"--mount {str(mount)!r}: the target {target} must be an absolute path in the container",
            run=f"seatrial run … --mount {shlex.quote(f'{mount.source}:{CONTAINER_PROJECT}/{target.name}')}",
        )
    if not source.exists() and not (made and not mount.read_only and source.is_relative_to(project.resolve())):
        there = next(parent for parent in source.parents if parent.is_dir())
        raise DataError(f"mount {from_here(source)}: there is no such file or folder", run=f"ls {as_typed(there)}")
    return Mount(source=source, target=str(target), read_only=mount.read_only)


def place_mounts(mounts: Sequence[Mount], ours: Iterable[Mount]) -> tuple[Mount, ...]:
    """Ours and the user's, parents first. A user's mount on the very target of one of ours takes its place.

    One of ours may lie inside a user's where the user's folder has that path: the engine mounts it on top. Where it
    has not, the engine would make the mount point there, in the user's own folder and as root.

    Raises UsageError when one would hide ours or lie where the engine or the agent works, or two have one target.
    """
    placed = {mount.target: mount for mount in ours}
    targets: set[str] = set()
    for mount in mounts:
        below = [target for target in placed if inside(target, mount.target) and target != mount.target]
        hidden = [t for t in below if not (mount.source / PurePosixPath(t).relative_to(mount.target)).exists()]
        reserved = [folder for folder in RESERVED if inside(mount.target, folder)]
        if (reserved and mount.target not in ALLOWED_IN_RESERVED) or hidden:
            what = f"hide {', '.join(hidden)}" if hidden else f"be inside {reserved[0]}, which is reserved"
            raise UsageError(
                f"--mount {mount.source}:{mount.target} would {what}",
                run=f"seatrial run … --mount {shlex.quote(f'{mount.source}:/mnt/{mount.source.name}')}",
            )
        if mount.target in targets:
            raise UsageError(f"two mounts have the target {mount.target}", run="seatrial plan …")
        targets.add(mount.target)
    placed.update((mount.target, mount) for mount in mounts)
    return tuple(sorted(placed.values(), key=lambda mount: len(PurePosixPath(mount.target).parts)))


def inside(path: str, folder: str) -> bool:
    """Whether a path in the container is the folder or below it."""
    return PurePosixPath(path).is_relative_to(folder)
