"""Types that planning reads, and those that each planner returns."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seatrial.backends.base import Backend, EngineFacts
from seatrial.errors import UsageError
from seatrial.images.recipes import recipe
from seatrial.job import in_container
from seatrial.job.cluster import ClusterPlan
from seatrial.job.gpus import Selection
from seatrial.job.model import Job, Target
from seatrial.job.plan import Choice, ContainerPlan, Gpu, GpuMode, ImagePlan, Injection, Mount, VenvPlan
from seatrial.planning.host import AnotherMachine, HostFacts
from seatrial.recipe_names import module_of
from seatrial.system.agent_archive import Interpreter
from seatrial.system.host import Caller
from seatrial.system.text import as_typed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from seatrial.backends.kubernetes.survey import ClusterFacts


class ServiceSite(NamedTuple):
    """A container that somebody else makes (a service of a Compose file), to which only what is ours is added.

    Attributes:
        argv: what it would run: its entrypoint and command, the image's by default.
        workdir: of its processes. environment: what the file sets, on top of the image's.
        mounts: its own bind mounts; ``filled``: targets of every mount that something may have been put into.
        read_only_root: as the file has it.
    """

    name: str
    argv: tuple[str, ...]
    workdir: str
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    filled: tuple[str, ...] = ()
    read_only_root: bool = False


class ClusterSite(NamedTuple):
    """A cluster as it was seen, and a line on when."""

    facts: ClusterFacts
    seen: Choice


class Site(NamedTuple):
    """Where a plan will happen: the backend, its facts, this host, and the run.

    Attributes:
        record: the run's (runs/run.py). outputs: the folder in the project that the target writes.
        project_cache: where this project's downloads and compiled kernels persist.
        agent_archive: where no target can write. copying: copies what runs it in a container.
        resumed: what shows the checkpoints of the run to go on from; None also where a cluster's volume has them.
        secrets_folder: where the run's secrets are handed over, or None when it has none.
        selection: this machine's GPUs that answer the request (leased, when the plan is about to be launched); None
            where a scheduler picks them.
        another: the machine that the plan is made for, where it is not this one.
        cluster: what the cluster has; None on this machine.
        caller: whose input and terminal the target may get; None: nobody's, it runs detached.
        service: the container is another's, and this is what it is like; None: it is all ours.
        launches: a build or a run follows, so the plan waits longer for package indexes.
        hidden: further folders that no container may see: caches, leases, the engine's, other projects' runs.
    """

    run_id: str
    record: Path
    outputs: Path
    project_cache: Path
    backend: Backend
    engine: EngineFacts
    host: HostFacts
    agent_archive: Path
    copying: Future[Interpreter | None] | None = None
    secrets_folder: Path | None = None
    resumed: Mount | None = None
    selection: Selection | None = None
    another: AnotherMachine | None = None
    cluster: ClusterSite | None = None
    caller: Caller | None = None
    service: ServiceSite | None = None
    launches: bool = False
    hidden: tuple[Path, ...] = ()

    @property
    def interpreter(self) -> Interpreter | None:
        """Return what runs the agent, once it is there; None: the image's Python does. Raises DiskError."""
        return self.copying.result() if self.copying else None


@dataclass(frozen=True)
class GpuPlan:
    """The GPUs of each node; () where a scheduler picks them."""

    mode: GpuMode
    count: int
    injection: Injection
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Meeting:
    """Describes how the nodes of one run find each other; the defaults are those of one node.

    Attributes:
        node_rank: this node's number, or None where it is read inside, from ``node_rank_variable``.
        rendezvous: HOST:PORT of node 0, or None.
        workers: HOST:PORT of every node, where they have names.
    """

    nodes: int = 1
    min_nodes: int | None = None
    node_rank: int | None = None
    node_rank_variable: str | None = None
    rendezvous: str | None = None
    rendezvous_id: str | None = None
    workers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """Holds the differences between a container, a process of this machine and a cluster's pods.

    Attributes:
        argv: the target's own command; ``script`` the index behind the interpreter (target_command.py).
        keeps_checkpoints: ranks that start again go on from them.
        unkept: folders whose files end with the container.
    """

    places: Places
    argv: tuple[str, ...]
    script: int | None
    gpus: GpuPlan
    keeps_checkpoints: bool = False
    unkept: tuple[str, ...] = ()
    meeting: Meeting = Meeting()
    env: dict[str, str] = field(default_factory=dict)
    image: ImagePlan | None = None
    container: ContainerPlan | None = None
    cluster: ClusterPlan | None = None
    python: str | None = None
    venv: VenvPlan | None = None
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()


class Places(NamedTuple):
    """Where things are, as the target sees them.

    Attributes:
        project: the working directory.
        data, models, resume: None when the job has none.
        scripts: the project's folder, which a script's path is relative to.
    """

    project: str
    run: str
    data: str | None
    models: str | None
    resume: str | None
    scripts: str = in_container.CONTAINER_PROJECT

    def env(self) -> dict[str, str]:
        """Return the places as variables, so that an unmodified script can be pointed at them on every backend."""
        variables = {
            "SEATRIAL_RUN_DIR": self.run,
            "SEATRIAL_DATA_DIR": self.data,
            "SEATRIAL_MODELS_DIR": self.models,
            "SEATRIAL_RESUME_DIR": self.resume,
        }
        return {name: value for name, value in variables.items() if value is not None}


def container_places(job: Job, *, resumes: bool) -> Places:
    return Places(
        project=job.folder_inside,
        run=in_container.CONTAINER_RUN,
        data=in_container.CONTAINER_DATA if job.data else None,
        models=in_container.CONTAINER_MODELS if job.models else None,
        resume=in_container.CONTAINER_RESUMED_CHECKPOINTS if resumes else None,
    )


def local_places(job: Job, outputs: Path, resume_from: Path | None) -> Places:
    """Return the places of a process here. Raises UsageError if the requested working directory does not exist."""
    project = Path(os.path.normpath(job.project / (job.workdir or "")))
    if not project.is_dir():
        raise UsageError(f"--workdir {job.workdir}: folder {project} not found", run=f"ls {as_typed(job.project)}")
    return Places(
        project=str(project),
        run=str(outputs),
        data=str(job.data.source) if job.data else None,
        models=str(job.models.source) if job.models else None,
        resume=str(resume_from) if resume_from else None,
        scripts=str(job.project),
    )


def target_argv(target: Target, image: ImagePlan | None, python: str, at: Places) -> tuple[tuple[str, ...], int | None]:
    """Return (argv, index behind the interpreter or None when it is not ours to relaunch under torchrun).

    An image's ENTRYPOINT stands in front, as the engine itself would put it; an image run by its own command
    keeps its CMD unless arguments are given, as ``docker run`` does.
    """
    entrypoint = image.entrypoint if image else ()
    if target.kind == "image":
        assert image is not None
        return (*entrypoint, *(target.args or image.cmd)), None
    script = posixpath.join(at.scripts, target.value)
    behind_python = {
        "script": [script.removeprefix(f"{at.project}/")],
        "module": ["-m", target.value],
        "recipe": ["-m", module_of(target.value), *_recipe_arguments(target, at)],
    }[target.kind]
    return (*entrypoint, python, *behind_python, *target.args), len(entrypoint) + 1


def _recipe_arguments(target: Target, places: Places) -> list[str]:
    """Return a training recipe's folders as flags; the other recipes read them from their environment."""
    if target.kind != "recipe" or not recipe(target.value).trains:
        return []
    given = (("--data", places.data), ("--models", places.models), ("--resume", places.resume))
    return [word for flag, value in given if value is not None for word in (flag, value)]
