"""Going on from an earlier run: its checkpoints, in a folder that its target could write."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from seatrial.errors import SeatrialError, UntrustedPathError, fallback
from seatrial.images.recipes import recipe
from seatrial.job.in_container import CONTAINER_RESUME
from seatrial.job.plan import Mount
from seatrial.runs.run import PLACE_FOLDER, Run
from seatrial.runs.store import RunStore
from seatrial.system import nofollow


def run_to_resume(store: RunStore, reference: str) -> Run:
    """Find the run to go on from; of ``last``, the newest that trains. Raises RunNotFoundError."""
    trained = (run for run in reversed(store.all()) if _trains(run)) if reference == "last" else iter(())
    return next(trained, None) or store.find(reference)


@fallback(False, on=SeatrialError)
def _trains(run: Run) -> bool:
    target = run.plan().job.target
    return target.kind != "recipe" or recipe(target.value).trains


def resumed(run: Run) -> Mount:
    """Return the mount of an earlier run's checkpoints, whose folder is made if it is missing.

    What is mounted is the folder above them, which no container can replace: should a target that still runs turn its
    checkpoints into a link, it leads to nothing but the new container's own files.

    Raises UntrustedPathError: it, or a folder above it in the project, is a link, which that run may have made.
    """
    with _checkpoints(run, make=True):
        return Mount(source=run.outputs, target=CONTAINER_RESUME, read_only=True)


@fallback(False, on=(FileNotFoundError, UntrustedPathError))
def has_checkpoint(run: Run) -> bool:
    """Return whether that run saved any checkpoint."""
    with _checkpoints(run) as descriptor:
        return bool(os.listdir(descriptor))  # noqa: PTH208  a descriptor, not a path


def _checkpoints(run: Run, *, make: bool = False) -> AbstractContextManager[int]:
    """Open the folder of a run's checkpoints; refuse a link among the folders from its project on."""
    project = run.place.parents[len(PLACE_FOLDER)]
    return nofollow.folder(project, *run.checkpoints.relative_to(project).parts, make=make)
