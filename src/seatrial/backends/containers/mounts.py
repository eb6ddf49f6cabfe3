"""Mounts of a container: the user's, HOME and its caches, masks over private folders, and checks of their sources."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from seatrial.errors import DataError, DiskError, UsageError, os_errors
from seatrial.job.in_container import CONTAINER_HOME, CONTAINER_MODELS, CONTAINER_PLAN, CONTAINER_PROJECT
from seatrial.job.plan import ContainerPlan, Mount, Tmpfs
from seatrial.system import nofollow
from seatrial.system.files import write_atomically
from seatrial.system.project_files import own_table
from seatrial.system.records import Folder
from seatrial.system.text import as_typed, from_here

#: Folders that a mount may neither cover nor lie in: seatrial's own, and those that the engine fills.
RESERVED = ("/seatrial", "/proc", "/sys", "/dev")
#: Below /dev, but a folder that people do mount (a dataset in host memory).
ALLOWED_IN_RESERVED = ("/dev/shm",)
#: The agent's plan holds the script's arguments and variables.
_MOST_PLAN_BYTES = 32 << 20

CACHE = f"{CONTAINER_HOME}/.cache"
#: Targets of mounts whose folders on the host are made.
_MADE = (CONTAINER_HOME, CACHE, CONTAINER_MODELS)

PASSWD = "/etc/passwd"
GROUP = "/etc/group"
#: Of a tmpfs that hides a path: nothing can be written into it, and it takes no memory.
OPTIONS = "ro,size=4k,mode=0555"


def parse_mount(text: str) -> Mount:
    """Parse ``./weights:/weights:ro``. Raises UsageError."""
    if (mount := Mount.parse(text)) is None:
        message = f"--mount {text!r} is not SOURCE:TARGET[:ro|rw]"
        cause = "a path with a colon in it cannot be mounted this way" if text.count(":") > 1 else None
        raise UsageError(message, cause=cause, run="seatrial run … --mount ./weights:/weights:ro")
    return mount


def checked_mount(mount: Mount, project: Path, state: Path, *, made: bool = False) -> Mount:
    """Resolve the links in a mount's source, relative to the project; ``made``: a missing folder is made at the start.

    Raises DataError, UsageError: the source is missing or a link out of the project, or the target is not absolute.
    """
    source = real_source(project / mount.source.expanduser(), project, "--mount", state=state)
    target = PurePosixPath(mount.target)
    if not target.is_absolute() or ".." in target.parts:
        message = f"--mount {str(mount)!r}: the target {target} must be an absolute path in the container"
        absolute = shlex.quote(f"{mount.source}:{CONTAINER_PROJECT}/{target.name}")
        raise UsageError(message, run=f"seatrial run … --mount {absolute}")
    if not source.exists() and not (made and not mount.read_only and source.is_relative_to(project.resolve())):
        there = next(parent for parent in source.parents if parent.is_dir())
        raise DataError(f"mount {from_here(source)}: no such file or folder", run=f"ls {as_typed(there)}")
    return Mount(source=source, target=str(target), read_only=mount.read_only)


def place_mounts(mounts: Sequence[Mount], ours: Iterable[Mount], needed: Sequence[str] = ()) -> tuple[Mount, ...]:
    """Merge our mounts and the user's, parents first. A user's mount replaces one of ours with the same target.

    ``needed``: paths of the image without which the target does not start.
    Raises UsageError: two have one target; one is in a reserved folder, hides ours or lacks our mount point, which the
    engine would make as root.
    """
    placed = {mount.target: mount for mount in ours}
    targets: set[str] = set()
    for mount in dict.fromkeys(mounts):
        below = [path for path in (*placed, *needed) if inside(path, mount.target) and path != mount.target]
        hidden = [t for t in below if not (mount.source / PurePosixPath(t).relative_to(mount.target)).exists()]
        reserved = [folder for folder in RESERVED if inside(mount.target, folder)]
        if (reserved and mount.target not in ALLOWED_IN_RESERVED) or hidden:
            what = f"hide {', '.join(hidden)}" if hidden else f"be inside {reserved[0]}, which is reserved"
            message = f"--mount {mount.source}:{mount.target} would {what}"
            run = f"seatrial run … --mount {shlex.quote(f'{mount.source}:/mnt/{mount.source.name}')}"
            raise UsageError(message, run=run, instead=(f":{mount.target}", [f":/mnt/{mount.source.name}"]))
        if mount.target in targets:
            raise UsageError(f"two mounts have the target {mount.target}", run="seatrial plan …")
        targets.add(mount.target)
    placed.update((mount.target, mount) for mount in mounts)
    return _parents_first(placed.values())


def inside(path: str, folder: str) -> bool:
    """Return whether a path in the container is the folder or below it."""
    return PurePosixPath(path).is_relative_to(folder)


def real_source(source: Path, project: Path, flag: str, *, state: Path) -> Path:
    """Resolve the links in an absolute source; ``flag``: as typed, for the message.

    Raises UsageError: a link leads out of the project, or it is in ``state``, which no container sees.
    """
    lexical, real = Path(os.path.normpath(source)), _real(source)
    inside = lexical.is_relative_to(project) or project in map(_real, lexical.parents)
    if inside and not real.is_relative_to(project):
        shown = f"./{lexical.relative_to(project)}" if lexical.is_relative_to(project) else str(lexical)
        cause = "It is a symlink, which any script that ran in the project could have created"
        by_real = f"seatrial run … {flag} {as_typed(real)}   # if that is the folder you mean"
        run = by_real if flag[0] == "-" else None
        raise UsageError(f"{flag} {shown} points outside the project, to {real}", cause=cause, run=run)
    if real.is_relative_to(state):
        message = f"{flag} {real} is in seatrial's own state folder, which is never mounted"
        raise UsageError(message, run=f"seatrial run … {flag} /another/folder")
    return real


@contextlib.contextmanager
def held_sources(container: ContainerPlan, *, mode: int = 0o600) -> Iterator[None]:
    """Open the source of every mount, through no link, and hand device and inode of each to the agent in its plan.

    An engine mounts by path, where another folder may be by then; the agent refuses that. A held source gives its inode
    to no other file. The agent's plan, of this ``mode``, cannot hold its own. Raises UntrustedPathError.
    """
    masks = [tmpfs.target for tmpfs in container.tmpfs if tmpfs.options == OPTIONS]
    identities: dict[str, tuple[int, int] | None] = dict.fromkeys(masks)
    with contextlib.ExitStack() as held:
        for mount in container.mounts:
            if mount.target != CONTAINER_PLAN:
                held.callback(os.close, descriptor := nofollow.open_source(mount.source))
                status = os.fstat(descriptor)
                identities[mount.target] = (status.st_dev, status.st_ino)
        for plan in [mount.source for mount in container.mounts if mount.target == CONTAINER_PLAN]:
            records = Folder(plan.parent, mode=mode)
            records.write(plan.name, {**records.get(plan.name, dict, max_bytes=_MOST_PLAN_BYTES), "mounts": identities})
        yield


def home_env(user_name: str) -> dict[str, str]:
    """Return HOME, the user's name as getpass reads it, and the caches."""
    caches = {name: f"{CACHE}{folder}" for name, folder in own_table(Path(__file__).with_name("caches.toml")).items()}
    return {"HOME": CONTAINER_HOME, "USER": user_name, "LOGNAME": user_name, **caches}


def home_mounts(record: Path, cache_folder: Path, *, named_user: bool) -> list[Mount]:
    """Return the mounts of HOME, its cache and, for a uid that the image does not know, passwd and group.

    HOME is in ``record``, the run's, where no other container replaces it before the agent looks.
    ``named_user``: mount files that name the uid, as getpass, torch's compiler and ssh call ``pwd.getpwuid``. They lack
    the image's system users: a process without capabilities cannot become one.
    """
    mounts = [Mount(source=record / "home", target=CONTAINER_HOME), Mount(source=cache_folder, target=CACHE)]
    if named_user:
        files = (("passwd", PASSWD), ("group", GROUP))
        mounts += [Mount(source=record / name, target=target, read_only=True) for name, target in files]
    return mounts


def user_files(name: str, uid: str, gid: str) -> tuple[str, str]:
    """Return the texts of passwd and group that give a container's user a name."""
    nobody = "nobody:x:65534:65534:nobody:/nonexistent:/bin/false"
    passwd = f"root:x:0:0:root:/root:/bin/sh\n{name}:x:{uid}:{gid}::{CONTAINER_HOME}:/bin/sh\n{nobody}\n"
    return passwd, f"root:x:0:\n{name}:x:{gid}:\nnogroup:x:65534:\n"


def make_host_files(container: ContainerPlan, project: Path) -> None:
    """Make what a container's mounts need on the host, in the project through no link; an engine would make it as root.

    These are folders of ours, missing sources in the project, the places in a mount that another mount or a mask
    covers, and a name for the user. Raises DiskError, UntrustedPathError.
    """
    sources = {mount.target: mount.source for mount in container.mounts}
    masks = [Mount(source=Path(each.target), target=each.target) for each in container.tmpfs if each.options == OPTIONS]
    covered = _mount_points((*container.mounts, *masks))
    written = (mount.source for mount in container.mounts if not mount.read_only)
    for folder in (
        *(sources[target] for target in _MADE if target in sources),
        *(point for point, source in covered.items() if source in {mask.source for mask in masks}),
        *(source for source in written if source.is_relative_to(project) and not source.exists()),
    ):
        _make_point(folder, project, folder=True)
    for point, source in _mount_points(container.mounts).items():
        _make_point(point, project, folder=source.is_dir())
    if PASSWD in sources and container.user:
        texts = user_files(container.env["USER"], *container.user.split(":"))
        for path, text in zip((sources[PASSWD], sources[GROUP]), texts, strict=True):
            write_atomically(path, text.encode())


def _make_point(path: Path, project: Path, *, folder: bool) -> None:
    """Make a folder or an empty file; in the project through no link."""
    around, flags = path if folder else path.parent, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    top = project if around.is_relative_to(project) else around
    with os_errors(DiskError, f"Cannot create {path}", f"ls -ld {as_typed(path.parent)}"):
        if top is around:
            around.mkdir(parents=True, exist_ok=True)
        with nofollow.folder(top, *around.relative_to(top).parts, make=top is project) as held:
            if not folder:
                os.close(os.open(path.name, flags | os.O_CLOEXEC, 0o644, dir_fd=held))


def _mount_points(mounts: Sequence[Mount]) -> dict[Path, Path]:
    """Return, for each mount inside another, e.g. HOME/.cache inside HOME, the path on the host that it covers."""
    points = {}
    for mount in mounts:
        around = [other for other in mounts if other is not mount and inside(mount.target, other.target)]
        if around:
            nearest = max(around, key=lambda other: len(other.target))
            if not nearest.read_only:
                points[nearest.source / PurePosixPath(mount.target).relative_to(nearest.target)] = mount.source
    return points


def shielded(mounts: Sequence[Mount], hidden: Iterable[Path]) -> tuple[tuple[Mount, ...], tuple[Tmpfs, ...]]:
    """Return the mounts with pins, parents first, and a mask over each of ``hidden`` that would show through one.

    A pin is a folder between a mount and a mask, mounted onto itself: nothing in the container can rename it (EBUSY)
    and put folders of its own at the path of the hidden one. Where nothing is written, nothing is pinned.
    A folder that is itself the source of a mount is not masked.
    """
    taken, pins, found = {mount.target for mount in mounts}, dict[str, Mount](), dict[str, Tmpfs]()
    for real in sorted({_real(folder) for folder in hidden}):  # parents first: what a mask covers needs none
        for mount in mounts:
            source = _real(mount.source)
            if real == source or not real.is_relative_to(source) or (mount.read_only and not real.exists()):
                continue
            above = [folder for folder in real.parents if folder != source and folder.is_relative_to(source)]
            target = {folder: str(PurePosixPath(mount.target, folder.relative_to(source))) for folder in (real, *above)}
            if (taken | found.keys()).isdisjoint(target.values()):
                found[target[real]] = Tmpfs(target=target[real], options=OPTIONS)
                pins |= {target[each]: Mount(source=each, target=target[each]) for each in above if not mount.read_only}
    return _parents_first((*mounts, *pins.values())), tuple(found[target] for target in sorted(found))


def _parents_first(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    return tuple(sorted(mounts, key=lambda mount: len(PurePosixPath(mount.target).parts)))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises for a link that leads to itself
