"""Types that planning reads, and those that each planner returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.backends.base import Backend, EngineFacts
from seatrial.job.cluster import ClusterPlan
from seatrial.job.gpus import Selection
from seatrial.job.plan import (
    Choice,
    ContainerPlan,
    Gpu,
    GpuMode,
    ImagePlan,
    Injection,
    Mount,
    VenvPlan,
)
from seatrial.planning.another_machine import AnotherMachine
from seatrial.planning.host import HostFacts
from seatrial.planning.target_command import Places
from seatrial.system.caller import Caller

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.survey import ClusterFacts


@dataclass(frozen=True)
class Resumed:
    """The run to go on from.

    Attributes:
        checkpoints: its folder of them; None where they lie on a cluster's volume.
        mount: what shows them in a container; None likewise.
    """

    checkpoints: Path | None = None
    mount: Mount | None = None


@dataclass(frozen=True)
class ServiceSite:
    """A container that somebody else makes (a service of a Compose file), to which only what is ours is added.

    Attributes:
        argv: what it would run: its entrypoint and command, the image's where it says nothing.
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


@dataclass(frozen=True)
class ClusterSite:
    """A cluster as it was seen, and a line that says when."""

    facts: ClusterFacts
    seen: Choice


@dataclass(frozen=True)
class Site:
    """Where a plan will happen: the backend, what it said of itself, this host, and the run.

    Attributes:
        record, place: the run's two folders (runs/run.py). outputs: the one in ``place`` that the target writes.
        project_cache: where this project's downloads and compiled kernels persist.
        agent_archive: where no target can write.
        secrets_folder: where the run's secrets are handed over, or None when it has none.
        selection: this machine's GPUs that answer the request (leased, when the plan is about to be launched); None
            where a scheduler picks them.
        another: the machine that the plan is made for, where it is not this one.
        cluster: what the cluster has; None on this machine.
        caller: whose input and terminal the target may get; None: nobody's, it runs detached.
        service: the container is another's, and this is what it is like; None: it is all ours.
    """

    run_id: str
    record: Path
    place: Path
    outputs: Path
    project_cache: Path
    backend: Backend
    engine: EngineFacts
    host: HostFacts
    agent_archive: Path
    secrets_folder: Path | None = None
    resumed: Resumed | None = None
    selection: Selection | None = None
    another: AnotherMachine | None = None
    cluster: ClusterSite | None = None
    caller: Caller | None = None
    service: ServiceSite | None = None


@dataclass(frozen=True)
class GpuPlan:
    """The GPUs of each node.

    Attributes:
        gpus: which ones; () where a scheduler picks them.
    """

    mode: GpuMode
    count: int
    injection: Injection
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Meeting:
    """Describes how the nodes of one run find each other; the defaults are those of one node.

    Attributes:
        rank: this node's number, or None where it is read inside, from ``rank_variable``.
        rendezvous: HOST:PORT of node 0, or None.
        workers: HOST:PORT of every node, where they have names.
    """

    nodes: int = 1
    min_nodes: int | None = None
    rank: int | None = None
    rank_variable: str | None = None
    rendezvous: str | None = None
    rendezvous_id: str | None = None
    workers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """Holds the differences between a container, a process of this machine and a cluster's pods.

    Attributes:
        argv: the target's own command; ``script`` the index behind the interpreter (target_command.py).
        keeps_checkpoints: ranks that start again go on from them.
        evidence_dir: where the agent writes its evidence; None: into its log, in frames.
        secrets_dir: where the agent finds the secrets, if there are any.
        unkept: folders whose files end with the container.
    """

    places: Places
    argv: tuple[str, ...]
    script: int | None
    gpus: GpuPlan
    keeps_checkpoints: bool
    evidence_dir: str | None = None
    secrets_dir: str | None = None
    unkept: tuple[str, ...] = ()
    meeting: Meeting = Meeting()
    env: dict[str, str] = field(default_factory=dict)
    image: ImagePlan | None = None
    container: ContainerPlan | None = None
    companion: ContainerPlan | None = None
    cluster: ClusterPlan | None = None
    python: str | None = None
    venv: VenvPlan | None = None
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()
