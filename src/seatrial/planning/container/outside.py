"""Files of this machine that a script names and that the container would not have."""

from __future__ import annotations

import os
import posixpath
import shlex
from collections.abc import Iterator
from pathlib import Path

from seatrial.backends.containers.user_mounts import inside
from seatrial.job.model import Job
from seatrial.job.plan import CONTAINER_DATA, CONTAINER_MODELS, CONTAINER_PROJECT
from seatrial.job.script import ScriptFacts

#: Folders that an image has, too: what a script names there is not this machine's.
_IN_IMAGES = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var")

#: A project of many scripts has many; a few show what is wrong.
_MOST_TOLD = 3


def warn_of_outside(job: Job, script: ScriptFacts) -> Iterator[str]:
    """A sentence for each path outside of the project that is there now and will not be in the container.

    A relative path is as seen from the project's folder, where ``seatrial run`` is typed and the target starts.
    """
    found: dict[str, tuple[str, str]] = {}
    for path, where in script.paths.items():
        if (mount := _missing(job, path, where)) is not None:
            found.setdefault(mount, (path, where))
    targets = [mount.rpartition(":")[2] for mount in found]
    outermost = [mount for mount, at in zip(found, targets, strict=True) if not _is_within(at, targets)]
    for mount in outermost[:_MOST_TOLD]:
        path, where = found[mount]
        yield (
            f"{where} names {path}, which is outside of the project and so not in the container; "
            f"to have it there: --mount {shlex.quote(mount)}"
        )


def _is_within(target: str, others: list[str]) -> bool:
    """Whether another mount brings it along."""
    return any(inside(target, each) for each in others if each != target)


def _missing(job: Job, path: str, where: str) -> str | None:
    """``SOURCE:TARGET`` of the mount that would bring it, or None where nothing is missing."""
    workdir = job.workdir or CONTAINER_PROJECT
    target = posixpath.normpath(posixpath.join(workdir, path))
    source = Path(os.path.normpath(job.project / path))  # resolve() would change the names
    beside = Path(os.path.normpath(job.project / Path(where.rpartition(":")[0]).parent / path))
    if source.is_relative_to(job.project) or workdir != CONTAINER_PROJECT:
        return None
    if beside.is_relative_to(job.project) and os.path.exists(beside):  # noqa: PTH110
        return None
    mounts = [mount.target for mount in job.mounts]
    mounts += [CONTAINER_DATA] if job.data else []
    mounts += [CONTAINER_MODELS] if job.models else []
    if any(inside(target, each) for each in mounts) or not os.path.exists(source):  # noqa: PTH110  # never raises
        return None
    if path.startswith("/"):
        return None if any(inside(target, each) for each in _IN_IMAGES) else f"{path}:{path}"
    ups, _, down = path.rpartition("../")
    top = f"{ups}../{down.partition('/')[0]}"
    return f"{top}:{posixpath.normpath(posixpath.join(workdir, top))}"
