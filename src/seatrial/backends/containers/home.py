"""The user's home inside a container: HOME, caches that persist, and a name for an arbitrary uid.

HOME itself is a folder of the run: on the disk and not in the memory that a tmpfs would take from the run, kept as
long as the run is, and never shared, so that one run's ``pip install --user`` is no other's surprise. HOME/.cache
lies over it and is shared by the runs of a project; another project's could leave poison in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from seatrial.backends.containers.mount_sources import make_folder_inside
from seatrial.backends.containers.user_mounts import inside
from seatrial.errors import DiskError
from seatrial.job.plan import CONTAINER_HOME, CONTAINER_MODELS, ContainerPlan, Mount
from seatrial.system.files import write_atomically
from seatrial.system.typed_path import as_typed

CACHE = f"{CONTAINER_HOME}/.cache"

#: Variables that send each tool's downloads and compiled kernels to the persistent cache. Most are there by default
#: under HOME/.cache; named all the same, since base images set some of them to folders of their own.
CACHE_VARIABLES = {
    "XDG_CACHE_HOME": CACHE,
    "PIP_CACHE_DIR": f"{CACHE}/pip",
    "HF_HOME": f"{CACHE}/huggingface",
    "TORCH_HOME": f"{CACHE}/torch",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/torchinductor",
    "MPLCONFIGDIR": f"{CACHE}/matplotlib",
    "CUDA_CACHE_PATH": f"{CACHE}/nv/ComputeCache",
}

#: Targets of mounts whose folders on the host are made.
_MADE = (CONTAINER_HOME, CACHE, CONTAINER_MODELS)

PASSWD = "/etc/passwd"
GROUP = "/etc/group"


def home_env(user_name: str) -> dict[str, str]:
    """HOME, the user's name as getpass reads it, and the caches."""
    return {"HOME": CONTAINER_HOME, "USER": user_name, "LOGNAME": user_name, **CACHE_VARIABLES}


def home_mounts(record: Path, place: Path, cache_folder: Path, *, named_user: bool) -> list[Mount]:
    """HOME, its persistent cache and, for a uid that the image does not know, passwd and group.

    Args:
        record, place: the run's two folders. cache_folder: the project's.
        named_user: mount files that give the uid a name. ``pwd.getpwuid`` raises KeyError without an entry, and
            getpass, torch's compiler and ssh call it; HOME and USER alone help only some of them. The image's own
            files are not read (that would take a container) but replaced: what is lost is the names of its system
            users, which a process without capabilities cannot become anyway.
    """
    mounts = [
        Mount(source=place / "home", target=CONTAINER_HOME),
        Mount(source=cache_folder, target=CACHE),
    ]
    if named_user:
        mounts += [
            Mount(source=record / "passwd", target=PASSWD, read_only=True),
            Mount(source=record / "group", target=GROUP, read_only=True),
        ]
    return mounts


@dataclass(frozen=True)
class HostFiles:
    """What must be on the host before a container starts; an engine would create it as root, or refuse.

    Attributes:
        folders: to make. sources: of mounts that are written to; those of the project are made if missing.
        mount_points: host path that shows through a mount → what is mounted over it there; of the same kind.
        texts: file → its text.
    """

    folders: tuple[Path, ...]
    mount_points: dict[Path, Path]
    texts: dict[Path, str]
    sources: tuple[Path, ...] = ()

    def write(self, project: Path) -> None:
        """Make what is not there yet, in the project through no link. Raises DiskError, UntrustedPathError."""
        root = project.resolve()
        missing = [path for path in self.sources if path.is_relative_to(root) and not path.exists()]
        for folder in (*self.folders, *missing):
            _make_point(folder, project, folder=True)
        for point, source in self.mount_points.items():
            _make_point(point, project, folder=source.is_dir())
        for path, text in self.texts.items():
            write_atomically(path, text.encode())


def _make_point(path: Path, project: Path, *, folder: bool) -> None:
    try:
        if not make_folder_inside(path if folder else path.parent, project):
            (path if folder else path.parent).mkdir(parents=True, exist_ok=True)
        if not folder:
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644))
    except OSError as error:
        raise DiskError(f"Cannot create {path}: {error.strerror}", run=f"ls -ld {as_typed(path.parent)}") from error


def host_files(container: ContainerPlan) -> HostFiles:
    """The host's side of a container's mounts, read from its plan. Pure; ``write`` acts."""
    sources = {mount.target: mount.source for mount in container.mounts}
    folders = tuple(sources[target] for target in _MADE if target in sources)
    texts = {}
    if PASSWD in sources and container.user:
        uid, gid = container.user.split(":")
        name = container.env["USER"]
        texts[sources[PASSWD]] = _passwd(name, uid, gid)
        texts[sources[GROUP]] = _group(name, gid)
    written = tuple(mount.source for mount in container.mounts if not mount.read_only)
    return HostFiles(folders, _mount_points(container.mounts), texts, written)


def _mount_points(mounts: Sequence[Mount]) -> dict[Path, Path]:
    """For each mount inside another, e.g. HOME/.cache inside HOME: the path on the host that it covers."""
    points = {}
    for mount in mounts:
        around = [other for other in mounts if other is not mount and inside(mount.target, other.target)]
        if around:
            nearest = max(around, key=lambda other: len(other.target))
            if not nearest.read_only:
                points[nearest.source / PurePosixPath(mount.target).relative_to(nearest.target)] = mount.source
    return points


def _passwd(name: str, uid: str, gid: str) -> str:
    return (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"{name}:x:{uid}:{gid}::{CONTAINER_HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    )


def _group(name: str, gid: str) -> str:
    return f"root:x:0:\n{name}:x:{gid}:\nnogroup:x:65534:\n"
