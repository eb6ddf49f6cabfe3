"""A view of the project for a run with declared outputs: the same names, and outputs that nobody else sees yet.

The view is a folder of the run. What the target reads through it is the project's own: links, and for the code that
runs a copy, so that ``Path(__file__).resolve().parent`` is the view as well. An output, with the folders above it, is
a folder of the view's own. So a script writes ``processed/`` as ever, deletes and renames there as it likes, and the
project has the old one, or none, until the run has ended well and the new one is put in its place by one rename.
The same on every backend: a process of this machine has no mounts, and a mount point can be neither renamed nor
removed from inside.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from seatrial.errors import DiskError
from seatrial.job.model import Job
from seatrial.job.plan import CONTAINER_PROJECT, CONTAINER_SOURCE, Plan
from seatrial.job.script import python_path, script_facts
from seatrial.system import nofollow
from seatrial.system.typed_path import as_typed

#: The view's folder in a run's place.
VIEW = "work"

#: What the project has and a view has not: our own folder, and what Python writes beside code.
_LEFT_OUT = (".seatrial", "__pycache__")


def in_view(job: Job, view: Path) -> Job:
    """The job with a models folder that is, or lies in, one of its outputs taken from the view."""
    if job.models is None or not job.models.source.is_relative_to(job.project):
        return job
    below = job.models.source.relative_to(job.project)
    if not any(below.is_relative_to(output) for output in job.outputs):
        return job
    return job.model_copy(update={"models": job.models.model_copy(update={"source": view / below})})


def make_view(plan: Plan) -> None:
    """Make the view that a plan names. Raises DiskError, UntrustedPathError."""
    view, project, job = plan.view, plan.job.project, plan.job
    assert view is not None, "asked for plans with a view"
    code = () if job.target.kind == "recipe" else _code(plan)
    mounted = [
        str(PurePosixPath(mount.target).relative_to(CONTAINER_PROJECT))
        for mount in job.mounts
        if PurePosixPath(mount.target).is_relative_to(f"{CONTAINER_PROJECT}/") and mount.target != CONTAINER_PROJECT
    ]
    source = project if plan.container is None else Path(CONTAINER_SOURCE)
    if job.workdir is not None:  # a folder that is really there, so that ``..`` leads to the view
        workdir = PurePosixPath(CONTAINER_PROJECT, job.workdir)
        if workdir.is_relative_to(f"{CONTAINER_PROJECT}/"):
            mounted.append(f"{workdir.relative_to(CONTAINER_PROJECT)}/.seatrial")
    root = project.resolve()
    try:
        with nofollow.folder(root, *view.relative_to(root).parts, make=True):
            _fill(view, root, source, job.outputs, code, mounted)
    except OSError as error:
        raise DiskError(
            f"Cannot create {error.filename or view}: {error.strerror}", run=f"df -h {as_typed(project)}"
        ) from error


def _code(plan: Plan) -> tuple[str, ...]:
    """Files of the project that the target runs, as far as reading it tells; none reached through a link."""
    job = plan.job
    any_python = job.image.ready is not None
    files = script_facts(job.target, job.project, any_python=any_python, path=python_path(job)).files
    return tuple(file for file in files if not file.startswith("/") and not _by_link(job.project, file))


def _by_link(project: Path, file: str) -> bool:
    path = PurePosixPath(file)
    return any((project / part).is_symlink() for part in (path, *path.parents[:-1]))


def _fill(
    view: Path, project: Path, source: Path, outputs: Collection[str], code: Collection[str], mounted: Collection[str]
) -> None:
    own = {*outputs, *code, *mounted}
    above = _folders_above(own)
    for folder in above:
        (view / folder).mkdir(parents=True, exist_ok=True)
        if not (project / folder).is_dir():
            continue
        for entry in os.scandir(project / folder):
            name = str(PurePosixPath(folder, entry.name))
            if name not in own and name not in above and entry.name not in _LEFT_OUT:
                (view / name).symlink_to(source / name)
    for file in code:
        if not any(PurePosixPath(file).is_relative_to(output) for output in outputs):
            shutil.copy2(project / file, view / file)
    for output in outputs:
        if (project / output).is_dir():
            (view / output).mkdir(exist_ok=True)


def _folders_above(paths: Iterable[str]) -> list[str]:
    """The folders that paths lie in, the project's own first."""
    found = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    return sorted({".", *found}, key=lambda folder: (len(PurePosixPath(folder).parts), folder))
