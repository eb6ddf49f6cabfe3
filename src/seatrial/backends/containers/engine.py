"""What Docker and Podman share: one container from a plan, and everything that is done to it afterwards.

Containers are made, and images pulled, through python-on-whales. Questions, and whatever must have an end, go to the
same command line with a time-out, which python-on-whales has not: a daemon that hangs must not hang us. (Its
``container.stop`` is not used for another reason: version 0.81.0 drops the grace time when it is a number.)
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from seatrial import events
from seatrial.backends.base import EngineFacts, Handle, ImageFacts, PlaceKind, State, Status
from seatrial.backends.containers.engine_errors import (
    as_addressed,
    last_line,
    pull_error,
    start_error,
    unavailable_error,
)
from seatrial.backends.containers.log import OpenLog, collecting
from seatrial.backends.containers.run_options import RunOptions, run_options
from seatrial.errors import (
    EXIT_GPU_CONTRACT,
    CommandTimeoutError,
    EngineError,
    EngineUnavailableError,
    GpuContractError,
)
from seatrial.job.plan import (
    CHECKS_ROLE,
    COMPANION_FOLDER,
    CONTAINER_RUN,
    FRAMED_LOG,
    LOG_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    ContainerPlan,
    Plan,
)
from seatrial.system import command

if TYPE_CHECKING:  # loaded where it is used: half a second that a listing of runs need not wait for
    from python_on_whales import DockerClient

INFO_TIMEOUT_S = 5.0
#: For inspect, kill, remove: milliseconds when well; beside a build that holds the store's lock on a loaded machine of
#: two cores Podman 4.3 was seen to take more than 30 s.
ANSWER_TIMEOUT_S = 120.0
COMPANION_TIMEOUT_S = 300.0

#: Where images keep their Python, most usual first.
PYTHON_CANDIDATES = (
    "python3",
    "python",
    "/opt/venv/bin/python",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python",
)
FIND_PYTHON = "import sys; print(sys.executable); sys.exit(sys.version_info < (3, 8))"

#: What engines call a container's state.
#: Source: moby api/types/container/state.go; podman libpod/define/containerstate.go.
STATUSES: dict[str, Status] = {
    "created": "created",
    "configured": "created",
    "initialized": "created",
    "running": "running",
    "paused": "running",
    "restarting": "running",
    "stopping": "running",
    "stopped": "exited",
    "exited": "exited",
    "removing": "exited",
    "dead": "exited",
}


class ContainerEngine:
    """The part of the Backend protocol that Docker and Podman do alike."""

    name: str
    place: PlaceKind = "container"
    #: Options of every container of this engine.
    own_options: ClassVar[Mapping[str, Any]]
    restart_command: ClassVar[str]

    def __init__(self, client_call: Sequence[str] = ()) -> None:
        """``client_call``: the program and its global options; default is the engine's name."""
        self.call = list(client_call) or [self.name]

    def facts(self) -> EngineFacts:
        raise NotImplementedError

    # ------------------------------------------------------------------ images

    def image(self, reference: str) -> ImageFacts | None:
        ended = self._ask("image", "inspect", reference)
        if ended.exit_code != 0:
            if _says_no_such(ended.stderr, "image"):
                return None
            raise unavailable_error(self.name, ended.stderr)
        return image_facts(json.loads(ended.stdout)[0])

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        from python_on_whales.exceptions import DockerException

        try:
            lines = self._client().image.pull(reference, stream_logs=True)
            for _, line in cast(Iterable[tuple[str, bytes]], lines):
                if progress is not None:
                    progress(line.decode(errors="replace").rstrip())
        except DockerException as error:
            raise pull_error(self.name, reference, error.stderr or "") from error
        facts = self.image(reference)
        if facts is None:
            raise pull_error(self.name, reference, "the engine pulled it but no longer has it")
        return facts

    def find_python(self, reference: str) -> str | None:
        for candidate in PYTHON_CANDIDATES:
            options = RunOptions(
                reference,
                ("-c", FIND_PYTHON),
                {
                    "cap_drop": ["ALL"],
                    "entrypoint": candidate,
                    "networks": ["none"],
                    "pull": "never",
                    "read_only": True,
                    "remove": True,
                },
            )
            ended = command.run(options.argv(self.call), timeout_s=ANSWER_TIMEOUT_S)
            if ended.exit_code == 0:
                return ended.stdout.strip() or candidate
            if ended.exit_code in (125, 126):  # the engine itself failed: the next candidate would, too
                raise start_error(self.name, ended.argv, ended.exit_code, ended.stderr)
        return None

    # ------------------------------------------------------------------- runs

    def options(self, container: ContainerPlan, image: str) -> RunOptions:
        """The container as this engine runs it. Pure."""
        return run_options(container, image).plus(**self.own_options)

    def compile(self, plan: Plan) -> list[str]:
        container, image = _container(plan)
        return self.options(container, image).plus(detach=True).argv(self.call)

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        from python_on_whales.exceptions import DockerException

        container, image = _container(plan)
        self._check_beside(plan, run_dir)
        options = self.options(container, image)
        client = self._client()
        with self._removed_on_failure(run_dir) as id_file:
            try:
                started = client.container.run(
                    options.image, options.command, detach=True, cidfile=id_file, **options.options
                )
            except DockerException as error:
                raise start_error(self.name, error.docker_command, error.return_code, error.stderr or "") from error
            return self._handle(self._inspect(started.id), plan.run_id, run_dir)

    def shell(self, plan: Plan, run_dir: Path) -> int:
        container, image = _container(plan)
        self._check_beside(plan, run_dir)
        options = self.options(container, image).plus(remove=True, interactive=True, tty=sys.stdin.isatty())
        with self._removed_on_failure(run_dir) as id_file:
            ended = command.call_interactive(options.plus(cidfile=id_file).argv(self.call), keep_stderr=True)
            if ended.exit_code in (125, 126, 127) and not _agent_has_started(plan):
                raise start_error(self.name, ended.argv, ended.exit_code, ended.stderr)
        return ended.exit_code

    def find(self, run_id: str, run_dir: Path) -> Handle | None:
        ended = self._ask("ps", "--all", "--no-trunc", "--quiet", "--filter", f"label={RUN_LABEL}={run_id}")
        if ended.exit_code != 0:
            raise unavailable_error(self.name, ended.stderr)
        found = [self._inspect(container_id) for container_id in ended.stdout.split()]
        targets = [one for one in found if _labels(one).get(ROLE_LABEL) != CHECKS_ROLE]
        for one in found:
            if one not in targets or STATUSES.get(one["State"]["Status"].lower()) == "created":
                self._ask("container", "rm", "--force", "--volumes", one["Id"])
                targets = [other for other in targets if other is not one]
        return self._handle(targets[0], run_id, run_dir) if targets else None

    def _handle(self, inspected: dict[str, Any], run_id: str, run_dir: Path) -> Handle:
        return Handle(
            backend=self.name,
            id=inspected["Id"],
            started=inspected["State"]["StartedAt"],
            run_id=run_id,
            run_dir=str(run_dir),
            framed=_labels(inspected).get(LOG_LABEL) == FRAMED_LOG,
        )

    def collect(
        self, handle: Handle, run_dir: Path, say: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        if not handle.framed:
            return contextlib.nullcontext()
        return collecting(
            [*self.call, "container", "logs", handle.id],
            run_dir,
            lambda: self.state(handle).status == "exited",
            say,
            open_log=self.open_log(handle),
        )

    def open_log(self, handle: Handle) -> OpenLog | None:
        """Another way to the container's log than the engine's ``logs --follow``; None: that one."""
        return None

    def state(self, handle: Handle) -> State:
        ended = self._ask("container", "inspect", handle.id)
        if ended.exit_code == 0:
            inspected = json.loads(ended.stdout)[0]
            return container_state(inspected) if _carries(inspected, handle) else State("gone")
        if _says_no_such(ended.stderr, "container"):
            return State("gone")
        raise unavailable_error(self.name, ended.stderr)

    def stop(self, handle: Handle, grace_s: float) -> None:
        seconds = math.ceil(grace_s)
        self._act(handle, "stop", "-t", str(seconds), timeout_s=seconds + ANSWER_TIMEOUT_S)

    def kill(self, handle: Handle) -> None:
        self._act(handle, "kill")

    def remove(self, handle: Handle) -> None:
        self._act(handle, "rm", "--volumes")

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        state = self.state(handle)
        if state.status != "running":
            raise EngineError(
                f"The run's container is not running: {state.status}",
                cause="commands need a running run",
                run="seatrial runs ls",
            )
        flags = ["--interactive"] if interactive else []
        if interactive and sys.stdin.isatty():
            flags.append("--tty")
        if handle.framed:
            agent = _agent_plan(handle)
            flags += ["--workdir", agent["workdir"]]
            flags += [word for name, value in agent["env"].items() for word in ("--env", f"{name}={value}")]
        return command.call_interactive([*self.call, "container", "exec", *flags, handle.id, *argv]).exit_code

    def logs_tail(self, handle: Handle, lines: int) -> str:
        ended = self._ask("container", "logs", "--tail", str(lines), handle.id)
        return "" if ended.exit_code != 0 else ended.stdout + ended.stderr

    # --------------------------------------------------------------- the parts

    def _client(self) -> DockerClient:
        from python_on_whales import DockerClient
        from python_on_whales.client_config import ClientNotFoundError

        client = DockerClient(client_call=self.call, client_type=cast(Literal["docker", "podman"], self.name))
        try:
            client.client_config.get_client_call_with_path()
        except ClientNotFoundError as error:
            raise EngineUnavailableError(f"{self.call[0]} is not installed", run=self.facts().fix) from error
        return client

    def _ask(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> command.Completed:
        """Ask the engine something. Raises EngineUnavailableError when it does not answer at all."""
        try:
            return command.run([*self.call, *words], timeout_s=timeout_s)
        except CommandTimeoutError as error:
            silent = EngineUnavailableError(
                f"{self.name.capitalize()} did not respond within {timeout_s:g} s",
                cause="it is busy with a build or pull, it hangs, or the machine is out of memory",
                run=self.restart_command,
            )
            raise as_addressed(silent, self.name) from error

    def _inspect(self, container_id: str) -> dict[str, Any]:
        ended = command.check([*self.call, "container", "inspect", container_id], timeout_s=ANSWER_TIMEOUT_S)
        container: dict[str, Any] = json.loads(ended.stdout)[0]
        return container

    def _act(self, handle: Handle, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Do something to a run's container; one that is gone or has ended already needs nothing done."""
        if self.state(handle).status == "gone":  # or it is another's, which is not touched
            return
        ended = command.run([*self.call, "container", *words, handle.id], timeout_s=timeout_s)
        if ended.exit_code != 0 and not _says_ended(ended.stderr):
            raise start_error(self.name, ended.argv, ended.exit_code, ended.stderr)

    @contextlib.contextmanager
    def _removed_on_failure(self, run_dir: Path) -> Iterator[Path]:
        """A file for the engine to write the new container's ID to; on any failure that container is removed."""
        id_file = run_dir / "container.id"
        id_file.unlink(missing_ok=True)
        try:
            yield id_file
        except BaseException:
            container_id = id_file.read_text().strip() if id_file.exists() else ""
            if container_id:
                # Killed first: Podman's forced removal would wait as long as for a stop.
                self._ask("container", "kill", container_id)
                self._ask("container", "rm", "--force", "--volumes", container_id)
            raise
        finally:
            id_file.unlink(missing_ok=True)

    def _check_beside(self, plan: Plan, run_dir: Path) -> None:
        """Run the companion of an image without Python: the GPU checks, under the same injection, to their end."""
        if plan.companion is None:
            return
        assert plan.companion_image is not None, "a companion has an image"
        options = self.options(plan.companion, plan.companion_image).plus(remove=True)
        with self._removed_on_failure(run_dir) as id_file:
            ended = command.run(options.plus(cidfile=id_file).argv(self.call), timeout_s=COMPANION_TIMEOUT_S)
        self._keep_checks(run_dir)
        if ended.exit_code == EXIT_GPU_CONTRACT:
            raise _contract_error(run_dir, ended.stderr)
        if ended.exit_code != 0:
            raise start_error(self.name, ended.argv, ended.exit_code, ended.stderr)

    def _keep_checks(self, run_dir: Path) -> None:
        """The evidence of a companion, which has ended, into the run's."""
        checked, _ = events.read(str(run_dir / COMPANION_FOLDER / "events.jsonl"))
        with events.EvidenceLog(str(run_dir / "events.jsonl"), "agent") as log:
            log.append(checked)


def image_facts(inspected: dict[str, Any]) -> ImageFacts:
    """One entry of ``image inspect``, which Docker and Podman print alike but for the prefix of the ID."""
    config = inspected.get("Config") or {}
    # Podman gives a local build a digest, too, of a repository that is nowhere.
    digests = [digest for digest in inspected.get("RepoDigests") or [] if not digest.startswith("localhost/")]
    return ImageFacts(
        id=_sha256(inspected["Id"]),
        digest=digests[0].partition("@")[2] if digests else None,
        size_bytes=int(inspected.get("Size") or 0),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
        env=dict(line.partition("=")[::2] for line in config.get("Env") or ()),
        user=config.get("User") or "",
        workdir=config.get("WorkingDir") or "",
    )


def container_state(inspected: dict[str, Any]) -> State:
    """One entry of ``container inspect``. Engines print exit code 0 for a container that has not ended."""
    state = inspected["State"]
    status = STATUSES.get(state["Status"].lower(), "running")
    return State(
        status,
        exit_code=state.get("ExitCode") if status == "exited" else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=state.get("Error") or None,
        image_id=_sha256(inspected["Image"]),
        seconds=_seconds(state["StartedAt"], state["FinishedAt"])
        if "FinishedAt" in state and status == "exited"
        else None,
    )


def _seconds(started_at: str, finished_at: str) -> float:
    """Between two times as engines print them: RFC 3339 with nanoseconds, which Python 3.10 does not read."""
    begin, end = (
        datetime.fromisoformat(
            re.sub(r"(\.\d{1,6})\d*", lambda part: part[1].ljust(7, "0"), time).replace("Z", "+00:00")
        )
        for time in (started_at, finished_at)
    )
    return max(0.0, (end - begin).total_seconds())


def _container(plan: Plan) -> tuple[ContainerPlan, str]:
    assert plan.container is not None and plan.image is not None, "a plan for an engine has a container and an image"
    return plan.container, plan.image.tag


def _agent_plan(handle: Handle) -> dict[str, Any]:
    """What the agent starts the target with: a command beside it gets the same working directory and variables."""
    assert handle.run_dir is not None, "a started run has a record"
    agent: dict[str, Any] = json.loads((Path(handle.run_dir) / "agent.json").read_bytes())["agent"]
    return agent


def _labels(inspected: dict[str, Any]) -> dict[str, str]:
    return inspected["Config"].get("Labels") or {}


def _carries(inspected: dict[str, Any], handle: Handle) -> bool:
    """Whether a container is that of the handle's run."""
    return handle.run_id is None or _labels(inspected).get(RUN_LABEL) == handle.run_id


def _agent_has_started(plan: Plan) -> bool:
    """Of a shell, whose agent writes where its user can."""
    mounts = plan.container.mounts if plan.container else ()
    outputs = next((mount.source for mount in mounts if mount.target == CONTAINER_RUN), None)
    if outputs is None:
        return False
    started = events.mark(events.AgentStarted)
    return any(started in line for line in events.Lines(str(outputs / "events.jsonl")).new())


def _contract_error(run_dir: Path, stderr: str) -> GpuContractError:
    """The finding that the companion's agent has written, as an error."""
    written, _ = events.read(str(run_dir / "events.jsonl"))
    findings = [finding for finding in events.of_type(written, events.Found) if finding.get("severity") == "error"]
    if not findings:
        return GpuContractError(f"The GPU check failed: {last_line(stderr)}")
    finding = findings[-1]
    return GpuContractError(str(finding["message"]), cause=finding.get("cause"), run=finding.get("fix"))


def _sha256(identifier: str) -> str:
    return identifier if identifier.startswith("sha256:") else f"sha256:{identifier}"


def _says_no_such(stderr: str, kind: Literal["image", "container"]) -> bool:
    said = stderr.lower()
    return f"no such {kind}" in said or "no such object" in said or f"{kind} not known" in said


def _says_ended(stderr: str) -> bool:
    return _says_no_such(stderr, "container") or "is not running" in stderr or "can only kill running" in stderr
