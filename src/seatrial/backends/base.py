"""Backend: the protocol that a place to run implements, and the facts it reports. ``table.py`` lists the backends."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from pydantic import ConfigDict, Field

from seatrial import events
from seatrial.errors import EngineUnavailableError, fallback
from seatrial.job.plan import EngineAddress, Plan
from seatrial.job.value import Value
from seatrial.probe.processes import file_bytes
from seatrial.system.records import Folder

if TYPE_CHECKING:
    from seatrial.backends.containers.images import ImageStore

#: Prints a line of progress.
Echo = Callable[[str], None]

Status = Literal["created", "running", "exited", "gone"]

#: The part of planning for a backend's requests (planning/plan.py): a container of this machine, a process, pods.
Planner = Literal["container", "process", "pods"]


class Traits(NamedTuple):
    """Capabilities of a backend: other code reads these, and never its name.

    Attributes:
        planner: the part of planning that makes its requests. honours: groups of options that it applies.
        refusal: of other groups: message and command; ``{typed}`` in it stands for their options.
        on_this_host: its runs use the GPUs that seatrial picks and leases; else a scheduler places them, and
            ``--on auto`` does not take it.
        isolates: the target runs apart from this machine's environment and files.
    """

    planner: Planner
    honours: frozenset[str]
    refusal: tuple[str, str] = ("", "")
    on_this_host: bool = True
    isolates: bool = True


#: Traits of a backend that runs containers on this machine: every option is honoured.
OF_CONTAINERS = Traits("container", frozenset({"container", "network", "limits", "image"}))

#: Traits of a backend that runs processes on this machine.
OF_PROCESSES = Traits(
    "process",
    frozenset(),
    ("{flags} {needs} a container; the backend {name} has none", "seatrial run … --on docker"),
    isolates=False,
)


class Handle(Value):
    """Finds a started run again, from any process: written to the run folder as handle.json.

    Attributes:
        id: full container ID, or the process ID of a local agent.
        started: the engine's start time, or the local process's start ticks, since IDs are reused.
        run_id: nothing is done to a container, or a process, that does not carry it.
        run_dir: the run's record. framed: its log is the agent's, in frames.
        composed: Compose made the container, and only Compose removes it.
        context, namespace: of a cluster. engine: None in handles of earlier versions.
    """

    model_config = ConfigDict(extra="ignore")

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

    @property
    def folder(self) -> Path:
        """Return the folder of the run's record."""
        assert self.run_dir is not None, "a started run has a record"
        return Path(self.run_dir)

    def agent(self) -> dict[str, Any]:
        """Read the agent's plan: a command in the run gets the target's working directory and variables."""
        return Folder(self.folder).get("agent.json", lambda data: dict(data["agent"]))


def this_machine() -> EngineAddress:
    """Return the address of a process and of a Podman's storage; machine-id(5) forbids showing the ID itself."""
    name = platform.node() or "localhost"
    machine = file_bytes("/etc/machine-id").decode().strip()
    return EngineAddress(endpoint=name, id=hashlib.sha256(f"seatrial {machine or name}".encode()).hexdigest()[:16])


@fallback(None, on=ValueError)
def time_ns(stamp: str) -> int | None:
    """Return an engine's time stamp, RFC 3339 with up to nine decimals, as Unix time in ns; None if it is none."""
    match = re.fullmatch(r"(.{19})(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", stamp)
    # Python 3.10 reads neither nine decimals nor Z.
    seconds = datetime.fromisoformat(match[1] + (match[3] or "Z").replace("Z", "+00:00")) if match else None
    return int(seconds.timestamp()) * 10**9 + int((match[2] or "").ljust(9, "0")) if match and seconds else None


class State(NamedTuple):
    """The state of a started run in its engine; ``status``: ``gone`` when the engine no longer knows it.

    ``oom_killed``: by the kernel. ``exit_code``: of container or agent; None while it runs or when unknown.
    ``seconds``: from the engine's start to its end. ``waiting``: why a live run cannot start or go on, in a word or
    two.
    """

    status: Status
    exit_code: int | None = None
    oom_killed: bool = False
    error: str | None = None
    seconds: float | None = None
    waiting: str | None = None

    @property
    def is_live(self) -> bool:
        return self.status in ("created", "running")


def reported_end(folder: Path) -> State:
    """Read the end of a run from its agents' last events: ``gone`` if one was killed, or the machine went down."""
    codes = [event.get("exit_code") for event in events.find(str(folder / "events.jsonl"), events.AgentFinished)]
    return State("exited", exit_code=next(filter(None, codes), codes[-1])) if codes else State("gone")


def confirm(kind: str, recorded: EngineAddress | None, here: Callable[[], EngineAddress], run: str) -> None:
    """Check that "not here" is the answer of the run's own engine, cluster or machine.

    ``kind``: of what has answered. ``recorded``: where the run is. ``run``: the command that shows what answers.
    Raises EngineUnavailableError: another one has answered, or the run's is not recorded.
    """
    if recorded is None:
        where, cause = "of the run not recorded", "An earlier version of seatrial started it, perhaps elsewhere"
    elif (other := here()).id != recorded.id:
        where, cause = f"at {recorded.endpoint} not reachable", f"{other.endpoint} has answered in its place"
    else:
        return
    raise EngineUnavailableError(f"{kind} {where}: the one that answers has nothing of it", cause=cause, run=run)


class EngineFacts(NamedTuple):
    """Holds the facts of an engine that planning needs, read once.

    Attributes:
        available: it answers and can run something. reason: one sentence why (not), with its version.
        fix: the command that would make it available.
        runtimes: names of OCI runtimes, e.g. ``("runc", "nvidia")``.
        cdi_spec_dirs: where it reads CDI specs. cdi_devices: qualified names, e.g. ``("nvidia.com/gpu=0", …)``.
        nvidia_hook: the toolkit's hook exists, so ``--gpus`` works without a registered runtime.
        selinux: labels are enforced, so bind mounts need relabelling or label=disable.
        cpu_limits, memory_limits: cgroup limits can be enforced (not always so when rootless).
        cores: of its machine, if it names them.
        desktop: Docker Desktop: containers run in a virtual machine, which has a GPU on Windows (WSL 2) only.
        snap: Docker from the snap, which cannot read outside the home folder.
        ignores_gpus_flag: it accepts ``--gpus`` and does nothing: GPUs need CDI names or device nodes.
        group_keyword: the value of ``--group-add`` that keeps the caller's groups in a rootless container.
        names_every_user: a user ID without a name gets a line in the container's /etc/passwd.
        maps_the_caller: rootless, it can map the caller to the same ID inside (``--userns keep-id``).
        configured_network: containers.conf chooses the network of a container that names none.
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
    cores: int | None = None
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
        """Return the engine's name in a sentence."""
        return self.name.capitalize()

    @property
    def takes_gpus_flag(self) -> bool:
        """Return whether ``--gpus`` works: through the toolkit's hook, or its registered runtime."""
        return self.nvidia_hook or "nvidia" in self.runtimes


@dataclass(frozen=True)
class ImageFacts:
    """Describes an image in the engine's store.

    ``id``: ``sha256:…`` of its configuration. ``digest``: repository digest, None for a local build. ``python``: path
    of a Python >= 3.8 inside; None: none, or not looked for. ``user``: "" for root. ``layers``: digests of its files.
    """

    id: str
    digest: str | None
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    python: str | None = None
    ports: bool = False
    health_check: bool = False
    user: str = ""
    layers: tuple[str, ...] = ()


class Freed(NamedTuple):
    """Counts what was removed of seatrial's own: images, cached steps of builds, and the bytes freed on the disk."""

    images: int
    steps: int
    bytes: int


class Backend(Protocol):
    """A place to run. ``images`` are those of its runs; None if none is on this machine."""

    name: str
    traits: Traits

    @property
    def images(self) -> ImageStore | None: ...

    def bound_to(self, engine: EngineAddress) -> Backend:
        """Return this backend on one engine, wherever the environment leads."""

    def facts(self) -> EngineFacts:
        """Look at the engine. Never raises: an engine that does not answer is reported in the facts."""

    def compile(self, plan: Plan) -> list[str]:
        """Return the engine-level request as one argv, as it would be typed. Pure."""

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        """Start it detached. Raises EngineError or GpuContractError, with nothing left behind."""

    def find(self, run_id: str, run_dir: Path) -> Handle | None:
        """Find a run that was started and not written down, by its mark; remove one that never started.

        Raises EngineUnavailableError, also where another engine than the run's has answered.
        """

    def collect(self, handle: Handle, run_dir: Path, echo: Echo) -> AbstractContextManager[None]:
        """Bring the run's output and evidence into its folder while open; at the end all of it has come.

        Does nothing if the run writes into the folder itself. ``echo`` gets its progress.
        """

    def state(self, handle: Handle) -> State:
        """Return the run's state; ``gone`` is its own engine's answer alone. Raises EngineUnavailableError."""

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Send SIGTERM, then SIGKILL after ``grace_s``; return when it has ended."""

    def interrupt(self, handle: Handle) -> bool:
        """Send SIGINT, as Ctrl-C on a terminal does, and return at once; False if that is impossible here."""

    def kill(self, handle: Handle) -> None:
        """Send SIGKILL to all processes of the run."""

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        """Run a command inside the live run with the caller's streams; return its exit code."""

    def shell(self, plan: Plan, run_dir: Path) -> int:
        """Run the plan in the foreground on the caller's terminal; return its exit code."""

    def remove(self, handle: Handle) -> None:
        """Remove the engine's part of an ended run. No error if nothing is left."""
