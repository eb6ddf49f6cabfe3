"""The target's own command line, as PID 1's child will run it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.images.recipes import recipe
from seatrial.job.model import Job, Target
from seatrial.job.plan import (
    CONTAINER_DATA,
    CONTAINER_MODELS,
    CONTAINER_PROJECT,
    CONTAINER_RESUMED_CHECKPOINTS,
    CONTAINER_RUN,
    ImagePlan,
)
from seatrial.recipe_names import module_of
from seatrial.system.typed_path import as_typed


@dataclass(frozen=True)
class Places:
    """Where things are, as the target sees them.

    Attributes:
        project: the working directory.
        data, models, resume: None when the job has none.
        scripts: what a script's path is relative to, ending in "/", where that is not the working directory.
    """

    project: str
    run: str
    data: str | None
    models: str | None
    resume: str | None
    scripts: str = ""

    def env(self) -> dict[str, str]:
        """The same as variables, so that an unmodified script can be pointed at them on every backend."""
        variables = {
            "SEATRIAL_RUN_DIR": self.run,
            "SEATRIAL_DATA_DIR": self.data,
            "SEATRIAL_MODELS_DIR": self.models,
            "SEATRIAL_RESUME_DIR": self.resume,
        }
        return {name: value for name, value in variables.items() if value is not None}


def container_places(job: Job, *, resumes: bool) -> Places:
    return Places(
        project=job.workdir or CONTAINER_PROJECT,
        run=CONTAINER_RUN,
        data=CONTAINER_DATA if job.data else None,
        models=CONTAINER_MODELS if job.models else None,
        resume=CONTAINER_RESUMED_CHECKPOINTS if resumes else None,
        scripts=f"{CONTAINER_PROJECT}/" if job.workdir else "",
    )


def local_places(job: Job, outputs: Path, resume_from: Path | None) -> Places:
    """Raises UsageError when the working directory asked for is not there."""
    project = job.project / (job.workdir or "")
    if not project.is_dir():
        raise UsageError(f"--workdir {job.workdir}: there is no folder {project}", run=f"ls {as_typed(job.project)}")
    return Places(
        project=str(project),
        run=str(outputs),
        data=str(job.data.source) if job.data else None,
        models=str(job.models.source) if job.models else None,
        resume=str(resume_from) if resume_from else None,
        scripts=f"{job.project}/" if job.workdir else "",
    )


def target_argv(target: Target, image: ImagePlan | None, python: str, places: Places) -> tuple[list[str], int | None]:
    """(argv, index behind the interpreter or None when it is not ours to relaunch under torchrun).

    An image's ENTRYPOINT stands in front, as the engine itself would put it; an image run by its own command
    keeps its CMD unless arguments are given, as ``docker run`` does.
    """
    entrypoint = list(image.entrypoint) if image else []
    if target.kind == "image":
        assert image is not None
        return [*entrypoint, *(target.args or image.cmd)], None
    behind_python = {
        "script": [places.scripts + target.value],
        "module": ["-m", target.value],
        "recipe": ["-m", module_of(target.value), *_recipe_arguments(target, places)],
    }[target.kind]
    return [*entrypoint, python, *behind_python, *target.args], len(entrypoint) + 1


def _recipe_arguments(target: Target, places: Places) -> list[str]:
    """Where a training recipe finds data, saves and resumes; the others read the same from their environment."""
    if target.kind != "recipe" or not recipe(target.value).trains:
        return []
    arguments = []
    for flag, value in (("--data", places.data), ("--models", places.models), ("--resume", places.resume)):
        if value is not None:
            arguments += [flag, value]
    return arguments
