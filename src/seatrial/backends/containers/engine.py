"""The common part of Docker and Podman: one container from a plan, and everything done to it afterwards."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seatrial import events
from seatrial.backends.base import OF_CONTAINERS, Echo, EngineFacts, Handle, State
from seatrial.backends.containers import client
from seatrial.backends.containers.images import ImageStore
from seatrial.backends.containers.log import OpenLog, collecting
from seatrial.backends.containers.mounts import held_sources
from seatrial.backends.containers.run_options import run_argv
from seatrial.errors import EngineError, EngineUnavailableError
from seatrial.findings.catalogue import mid_sentence
from seatrial.job.in_container import CONTAINER_RUN, FRAMED_LOG, LOG_LABEL, RUN_LABEL
from seatrial.job.plan import ContainerPlan, EngineAddress, Plan
from seatrial.system import command
from seatrial.system.records import Folder

if TYPE_CHECKING:
    from typing_extensions import Self

#: Exit codes of ``exec`` for a program that is not there, of Docker's releases and Podman.
_NOT_STARTED = (126, 127)
#: The message of runc and crun, on stderr or, Docker 20.10, on stdout.
NO_PROGRAM = re.compile(r"executable file [^\n]*not found in \$PATH")
#: The image is there already: a container of it takes seconds at most, on a slow disk with a cold cache a minute.
START_TIMEOUT_S = 300.0
#: Label of containers that Compose makes. Source: docker/compose, pkg/api/labels.go.
COMPOSE_LABEL = "com.docker.compose.project"


class ContainerEngine(ABC):
    """Implements the Backend protocol for Docker and Podman; ``own_options`` are those of all its containers."""

    traits = OF_CONTAINERS
    dialect: ClassVar[client.Dialect]
    own_options: ClassVar[Mapping[str, Any]]
    #: Added to the options of a tmpfs that must be empty.
    bare_tmpfs: ClassVar[str] = ""

    def __init__(self, client_call: Sequence[str] = (), at: EngineAddress | None = None) -> None:
        """Set up an engine. ``client_call``: the program and its global options; default is the engine's name."""
        self.name: str = self.dialect.name
        self.client = client.EngineClient(self.dialect, client_call, at)
        self.call = self.client.typed
        self.images = ImageStore(self.client)

    def bound_to(self, engine: EngineAddress) -> Self:
        return type(self)(self.call, engine)

    def facts(self) -> EngineFacts:
        if (program := shutil.which(self.call[0])) is None:
            reason = f"{self.call[0]} is not installed"
            return EngineFacts(self.name, available=False, reason=reason, fix=self.dialect.install)
        try:
            info = self.client.info()
            return self.facts_of(info, Path(program))._replace(address=self.client.address(info))
        except EngineUnavailableError as error:
            reason = f"{error.message}: {mid_sentence(error.cause)}" if error.cause else error.message
            return EngineFacts(self.name, available=False, reason=reason, fix=error.run)

    @abstractmethod
    def facts_of(self, info: dict[str, Any], program: Path) -> EngineFacts:
        """Read the facts in the engine's ``info``; ``program`` is its client."""

    def argv(self, client_call: Sequence[str], container: ContainerPlan, image: str, **options: Any) -> list[str]:
        """Return the command line that runs a container on this engine. Pure."""
        return run_argv(client_call, container, image, bare_tmpfs=self.bare_tmpfs, **self.own_options, **options)

    def compile(self, plan: Plan) -> list[str]:
        return self.argv(self.call, *_container(plan), detach=True)

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        container, image = _container(plan)
        with held_sources(container), self._removed_on_failure(run_dir) as id_file:
            argv = self.argv(self.client.call, container, image, detach=True, cidfile=id_file)
            ended = command.run(argv, timeout_s=START_TIMEOUT_S)
            _require_success(self.name, ended)
            return self._handle(ended.stdout.strip(), container.labels, plan.run_id, run_dir)

    def shell(self, plan: Plan, run_dir: Path) -> int:
        container, image = _container(plan)
        options = {"remove": True, "interactive": True, "tty": sys.stdin.isatty()}
        with held_sources(container), self._removed_on_failure(run_dir) as id_file:
            argv = self.argv(self.client.call, container, image, cidfile=id_file, **options)
            ended = command.call_interactive(argv, keep_stderr=True)
            if ended.exit_code in (125, 126, 127) and not _agent_has_started(plan):
                raise client.start_error(self.name, ended.argv, ended.exit_code, ended.stderr)
        return ended.exit_code

    def find(self, run_id: str, run_dir: Path) -> Handle | None:
        ended = self.client.ask("ps", "--all", "--no-trunc", "--quiet", "--filter", f"label={RUN_LABEL}={run_id}")
        if ended.exit_code != 0:
            raise self.client.unavailable(ended.stderr)
        targets = []
        for one in filter(None, (self.client.inspect("container", each) for each in ended.stdout.split())):
            if client.STATUSES.get(one["State"]["Status"].lower()) != "created":
                targets.append(one)
            elif COMPOSE_LABEL not in _labels(one):  # Compose is about to start its own
                self._remove_now(one["Id"])
        if not targets:
            self.client.confirm(self.client.at)
            return None
        found = targets[0]
        return self._handle(found["Id"], _labels(found), run_id, run_dir, started=found["State"]["StartedAt"])

    def _handle(
        self, id: str, labels: Mapping[str, str], run_id: str, run_dir: Path, started: str | None = None
    ) -> Handle:
        return Handle(
            backend=self.name,
            id=id,
            started=started,
            run_id=run_id,
            run_dir=str(run_dir),
            framed=labels.get(LOG_LABEL) == FRAMED_LOG,
            composed=COMPOSE_LABEL in labels,
            engine=self.client.at or self.client.address(),
        )

    def collect(self, handle: Handle, run_dir: Path, echo: Echo) -> contextlib.AbstractContextManager[None]:
        def is_over() -> bool:
            return self.state(handle).status == "exited"

        return collecting(self.open_log(handle), run_dir, is_over, echo, starts_again=handle.composed)

    def open_log(self, handle: Handle) -> OpenLog:
        """Return an opener of the container's log."""
        logs = [*self.client.call, "container", "logs"]
        return lambda follow: command.Piped([*logs, *(["--follow"] if follow else []), handle.id])

    def state(self, handle: Handle) -> State:
        inspected = self.client.inspect("container", handle.id)
        if inspected is not None and handle.run_id in (None, _labels(inspected).get(RUN_LABEL)):
            return client.container_state(inspected)
        self.client.confirm(handle.engine)
        return State("gone")

    def stop(self, handle: Handle, grace_s: float) -> None:
        seconds = math.ceil(grace_s)
        self._act(handle, "stop", "-t", str(seconds), timeout_s=seconds + client.ANSWER_TIMEOUT_S)

    def interrupt(self, handle: Handle) -> bool:
        self._act(handle, "kill", "--signal", "INT")
        return True

    def kill(self, handle: Handle) -> None:
        self._act(handle, "kill")

    def remove(self, handle: Handle) -> None:
        self._act(handle, "rm", "--volumes")

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        state = self.state(handle)
        if state.status != "running":
            message = f"The run's container is not running: {state.status}"
            raise EngineError(message, cause="commands need a running run", run="seatrial runs ls")
        flags = ["--interactive"] if interactive else []
        if interactive and sys.stdin.isatty():
            flags.append("--tty")
        agent = handle.agent()
        flags += ["--workdir", agent["workdir"]]
        flags += [word for name, value in agent["env"].items() for word in ("--env", f"{name}={value}")]
        call = [*self.client.call, "container", "exec", *flags, handle.id, *argv]
        ended = command.call_interactive(call, keep_stderr=True, withhold=NO_PROGRAM)
        if ended.exit_code in _NOT_STARTED:  # or a shell's own "not found", which ends alike
            found = self.client.ask("container", "exec", handle.id, "sh", "-c", 'command -v "$0"', argv[0])
            if found.exit_code != 0:
                raise _not_in_the_container(argv[0], gpu_mode=agent["gpu_mode"])
        return ended.exit_code

    def _act(self, handle: Handle, *words: str, timeout_s: float = client.ANSWER_TIMEOUT_S) -> None:
        """Run ``container WORDS`` on a run's container; one that is gone or has ended already is left alone."""
        if self.state(handle).status == "gone":  # or it is another's, which is not touched
            return
        ended = command.run([*self.client.call, "container", *words, handle.id], timeout_s=timeout_s)
        has_ended = client.is_unknown(ended.stderr, "container") or "is not running" in ended.stderr
        if not has_ended and "can only kill running" not in ended.stderr:
            _require_success(self.name, ended)

    @contextlib.contextmanager
    def _removed_on_failure(self, run_dir: Path) -> Iterator[Path]:
        """Make a file for the engine to write the new container's ID to; remove that container on any failure."""
        id_file = run_dir / "container.id"
        id_file.unlink(missing_ok=True)
        try:
            yield id_file
        except BaseException:
            container_id = Folder(run_dir).load(id_file.name).decode().strip() if id_file.exists() else ""
            if container_id:
                # Killed first: Podman's forced removal would wait as long as for a stop.
                self.client.ask("container", "kill", container_id)
                self._remove_now(container_id)
            raise
        finally:
            id_file.unlink(missing_ok=True)

    def _remove_now(self, container_id: str) -> None:
        self.client.ask("container", "rm", "--force", "--volumes", container_id)


def _container(plan: Plan) -> tuple[ContainerPlan, str]:
    assert plan.container is not None and plan.image is not None, "a plan for an engine has a container and an image"
    return plan.container, plan.image.tag


def _labels(inspected: dict[str, Any]) -> dict[str, str]:
    return inspected["Config"].get("Labels") or {}


def _agent_has_started(plan: Plan) -> bool:
    """Return whether the agent of a shell has written evidence."""
    mounts = plan.container.mounts if plan.container else ()
    outputs = next((mount.source for mount in mounts if mount.target == CONTAINER_RUN), None)
    if outputs is None:
        return False
    started = events.mark(events.AgentStarted)
    return any(started in line for line in events.Lines(str(outputs / "events.jsonl")).new())


def _require_success(engine: str, ended: command.Completed) -> None:
    if ended.exit_code != 0:
        raise client.start_error(engine, ended.argv, ended.exit_code, ended.stderr)


def _not_in_the_container(program: str, *, gpu_mode: str) -> EngineError:
    """Return the error for "executable file not found in $PATH"."""
    kind = "this CPU container" if gpu_mode in ("none", "auto-cpu") else "this container"
    comes_with_gpus = program.startswith("nvidia-") and "CPU" in kind
    cause = "The NVIDIA runtime adds it with the GPUs" if comes_with_gpus else "Its image does not have it"
    run = "nvidia-smi   # on the host" if comes_with_gpus else "seatrial runs exec last -- ls /usr/bin /opt/venv/bin"
    return EngineError(f"{program} not found in {kind}", cause=cause, run=run)
