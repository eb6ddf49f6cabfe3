"""Backend and ImageStore: the protocols that a place to run implements, and the facts it reports.

To add one: implement the protocol in a file beside this one and add it to the table in ``backends/table.py``.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from seatrial.job.plan import EngineAddress, Plan
from seatrial.system.command import Completed

Status = Literal["created", "running", "exited", "gone"]

#: Which part of planning makes a backend's requests (planning/plan.py): a container of this machine, a process, pods.
Planner = Literal["container", "process", "pods"]


@dataclass(frozen=True)
class Traits:
    """Capabilities of a backend: other code reads these, and never its name.

    Attributes:
        planner: the part of planning that makes its requests.
        honours: groups of options that it applies: ``container``, ``network``, ``limits``, ``image``.
        refusal: the message for options of other groups, with ``{flags}``, ``{needs}`` and ``{name}``; and the command.
        on_this_host: its runs are on this machine and use the GPUs that seatrial picks and leases; else a scheduler
            places them and picks the GPUs, and ``--on auto`` does not take it.
        isolates: the target runs apart from this machine's environment and files.
    """

    planner: Planner
    honours: frozenset[str]
    refusal: tuple[str, str] = ("", "")
    on_this_host: bool = True
    isolates: bool = True


#: Of a backend that runs containers of this machine: every option is honoured.
OF_CONTAINERS = Traits("container", frozenset({"container", "network", "limits", "image"}))

#: Of a backend that runs processes of this machine.
OF_PROCESSES = Traits(
    "process",
    frozenset(),
    ("{flags} {needs} a container; the backend {name} has none", "seatrial run … --on docker"),
    isolates=False,
)


class Handle(BaseModel):
    """Finds a started run again, from any process: written to the run folder as handle.json.

    Attributes:
        id: full container ID, or the process ID of a local agent.
        started: the engine's start time, or the local process's start ticks, so that a reused ID is not mistaken.
        run_id: whose it is: nothing is done to a container, or a process, that does not carry it.
        run_dir: the run's record; backends read there how an agent ended that the engine has forgotten.
        framed: its log is the agent's, in frames.
        composed: Compose made the container and waits for its end there: only Compose takes it away.
        context, namespace: of a cluster.
        engine: where it is; None in handles of before 0062: the current engine finds the run, or nobody knows of it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    backend: str
    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")  # never a flag of an engine
    started: str | None = None
    run_id: str | None = None
    run_dir: str | None = None
    framed: bool = False
    composed: bool = False
    context: str | None = None
    namespace: str | None = None
    engine: EngineAddress | None = None


def this_machine() -> EngineAddress:
    """The address of what has no service: a process, and a Podman's storage.

    Source of the ID: machine-id(5), which asks programs to keep the ID itself to the machine.
    """
    name = platform.node() or "localhost"
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return EngineAddress(endpoint=name, id=hashlib.sha256(f"seatrial {machine or name}".encode()).hexdigest()[:16])


@dataclass(frozen=True)
class State:
    """Reports how a started run is, as its engine has it.

    Attributes:
        status: ``gone`` when the engine no longer knows it.
        exit_code: of the container or agent; None while it runs or when unknown.
        oom_killed: the engine saw the kernel's OOM killer act on it.
        seconds: between the engine's start and end of an ended container; None where it does not tell.
        waiting: what a live run waits for before it can start or go on, in a word or two; None where that is not known.
    """

    status: Status
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None
    seconds: float | None = None
    waiting: str | None = None

    @property
    def is_live(self) -> bool:
        """It runs, or is about to. What is not live has ended, whether or not the engine knows how."""
        return self.status in ("created", "running")


@dataclass(frozen=True)
class EngineFacts:
    """Holds the facts of an engine that planning needs, read once.

    Attributes:
        name: ``docker``, ``podman`` or ``local``.
        available: it answers and can run something.
        reason: one sentence: why (not) available, and its version.
        fix: the command that would make it available, or None.
        version: e.g. ``28.2.2``.
        rootless: it runs as an ordinary user.
        runtimes: names of OCI runtimes, e.g. ``("runc", "nvidia")``.
        cdi_spec_dirs: where this engine reads CDI specs; () when it has no CDI.
        cdi_devices: qualified names it can resolve, e.g. ``("nvidia.com/gpu=0", …)``.
        nvidia_hook: the toolkit's hook is found, so ``--gpus`` works without a registered runtime.
        selinux: labels are enforced, so bind mounts need relabelling or label=disable.
        cpu_limits, memory_limits: cgroup limits can be enforced (not always so when rootless).
        desktop: Docker Desktop: containers run in a virtual machine, which has a GPU on Windows (WSL 2) only.
        snap: Docker from the snap, which cannot read outside the home folder.
        ignores_gpus_flag: it accepts ``--gpus`` and does nothing: GPUs need CDI names or device nodes.
        group_keyword: the value of ``--group-add`` that keeps the caller's groups in a rootless container.
        names_every_user: a user ID without a name gets a line in the container's /etc/passwd.
        maps_the_caller: rootless, it can map the caller to the same ID inside (``--userns keep-id``).
        configured_network: its configuration, containers.conf, chooses the network of a container that names none.
        address: of this engine; None where it is not available.
    """

    name: str
    available: bool
    reason: str
    fix: str | None = None
    version: str | None = None
    rootless: bool = False
    runtimes: tuple[str, ...] = ()
    cdi_spec_dirs: tuple[str, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    nvidia_hook: bool = False
    selinux: bool = False
    cpu_limits: bool = True
    memory_limits: bool = True
    cgroup_driver: str | None = None
    desktop: bool = False
    snap: bool = False
    address: EngineAddress | None = None
    ignores_gpus_flag: bool = False
    group_keyword: str | None = None
    names_every_user: bool = False
    maps_the_caller: bool = False
    configured_network: bool = False

    @property
    def title(self) -> str:
        """The engine's name in a sentence."""
        return self.name.capitalize()

    @property
    def takes_gpus_flag(self) -> bool:
        """``--gpus`` works: through the toolkit's hook, or its registered runtime."""
        return self.nvidia_hook or "nvidia" in self.runtimes


@dataclass(frozen=True)
class ImageFacts:
    """Describes an image in the engine's store.

    Attributes:
        id: ``sha256:…`` of its configuration. digest: repository digest, None for a local build.
        python: path of a Python >= 3.8 inside, None when there is none, or not looked for.
    """

    id: str
    digest: str | None
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    python: str | None = None


@dataclass(frozen=True)
class Freed:
    """Counts what was removed of seatrial's own: images, cached steps of builds, and the bytes freed on the disk."""

    images: int
    steps: int
    bytes: int


class ImageStore(Protocol):
    """The images of an engine on this machine.

    Attributes:
        name: the engine's. call: its program and global options, as a person would type them.
    """

    @property
    def name(self) -> str: ...

    @property
    def call(self) -> Sequence[str]: ...

    def image(self, reference: str) -> ImageFacts | None:
        """The image in the store, or None. Raises EngineUnavailableError."""

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        """Make the image present, telling ``progress`` each line the engine prints.

        Raises ImageError naming the reference and the next command.
        """

    def push(self, reference: str) -> None:
        """Push an image to the registry in its name.

        Raises UsageError where the name has no registry, ImageError naming the registry and the next command.
        """

    def find_python(self, reference: str) -> str | None:
        """Path of a Python >= 3.8 inside the image, found by running it there, or None."""

    def run_once(
        self,
        reference: str,
        argv: Sequence[str],
        *,
        timeout_s: float,
        options: Sequence[str] = (),
        input: str | None = None,
    ) -> Completed:
        """Run a command in a container of the image that is gone afterwards and has no network.

        Args:
            options: more of the engine's options of ``run``.
        """

    def save(self, reference: str) -> Iterator[bytes]:
        """The image as a tar archive. Raises EngineError."""

    def tag(self, reference: str, name: str) -> None:
        """Give an image another name. Raises CommandError."""

    def remove(self, reference: str) -> None:
        """Take a name away, and the image with its last one. No error when there is none."""

    def free_unused(self, *, repository: str | None, idle_s: float, dry_run: bool) -> Freed:
        """Remove what our builds have left and nothing uses: images without a container, cached steps without an image.

        Args:
            repository: images of this name alone, the newest left; None: of every name, the newest, too.
            idle_s: seconds for which no build has used a cached step.
        """

    def storage_root(self) -> Path | None:
        """The folder where layers are kept; None when it is not on this machine's disk."""

    def check_builder(self) -> None:
        """Raises EngineUnavailableError: this engine cannot build what images/ writes (cache mounts, secrets)."""

    def build(
        self, context: Path, tag: str, *, network: str | None, secrets: Sequence[str], labels: Mapping[str, str]
    ) -> Iterator[str]:
        """Build the Dockerfile in a folder, line of output by line.

        Args:
            network: for RUN instructions; None is the engine's default. secrets: ``id=NAME,src=PATH`` each.

        Raises ImageError when it does not build.
        """


class Backend(Protocol):
    """A place to run.

    Attributes:
        images: the images of its runs; None if none is on this machine. A backend of containers has them.
    """

    name: str
    traits: Traits

    @property
    def images(self) -> ImageStore | None: ...

    def bound_to(self, engine: EngineAddress) -> Backend:
        """This backend on one engine, whatever the environment leads to."""

    def facts(self) -> EngineFacts:
        """Look at the engine. Never raises for an engine that is not there; says so in the facts."""

    def compile(self, plan: Plan) -> list[str]:
        """The engine-level request as one argv, as it would be typed. Pure."""

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        """Start it detached; return at once. Raises EngineError or GpuContractError; leaves nothing behind then."""

    def find(self, run_id: str, run_dir: Path) -> Handle | None:
        """The run that somebody started and could not write down, by the label or mark that it carries; else None.

        One that was made and never started is removed. Raises EngineUnavailableError, also where another engine than
        the run's has answered.
        """

    def collect(self, handle: Handle, run_dir: Path, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """While open, the run's output and evidence come into its folder; at the end all there is has come.

        Nothing to do where the run writes into the folder itself. ``say`` gets its progress in words.
        """

    def state(self, handle: Handle) -> State:
        """Return the run's state. ``gone`` is the answer of the handle's own engine alone.

        Raises EngineUnavailableError: that engine does not answer, or another one in its place.
        """

    def stop(self, handle: Handle, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after ``grace_s``. Returns when it has ended."""

    def interrupt(self, handle: Handle) -> bool:
        """SIGINT, as from Ctrl-C on a terminal, and return at once; False where the place has no such way."""

    def kill(self, handle: Handle) -> None:
        """SIGKILL now, all of it."""

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        """Run a command inside the live run with the caller's streams; its exit code."""

    def shell(self, plan: Plan, run_dir: Path) -> int:
        """Run the plan in the foreground on the caller's terminal; its exit code."""

    def logs_tail(self, handle: Handle, lines: int) -> str:
        """The engine's own last output: what is left when the agent could not even start."""

    def remove(self, handle: Handle) -> None:
        """Remove what the engine keeps of an ended run. No error when nothing is left."""
