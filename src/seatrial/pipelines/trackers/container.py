"""A tracker's container: what it may see, where it listens; its start, its end, and whether it lives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.backends.containers.engine_errors import last_line, start_error
from seatrial.backends.containers.mount_sources import check_sources, make_folder_inside
from seatrial.errors import EngineError, UsageError
from seatrial.images.dockerfile.render import VENV_PYTHON
from seatrial.job.plan import ContainerPlan, Mount, Tmpfs
from seatrial.planning.container.masks import masks
from seatrial.planning.container.plan import TMP, caller_in
from seatrial.runs.services import MLFLOW_FOLDER, Service, TrackerName
from seatrial.runs.store import EVENTS_FOLDER, RunStore
from seatrial.system import command
from seatrial.system.files import write_atomically

#: By these ``down`` and tests know our containers and networks.
SERVICE_LABEL, PROJECT_LABEL = "seatrial.service", "seatrial.project"

#: Port inside. Folders inside: our programs, the project, the runs' event files, MLflow's data.
PORT = 8000
_PROGRAMS, _PROJECT, _EVENTS, _DATA = "/seatrial/served", "/project", "/events", "/data"

#: Where scripts write events without being told: torch's and Keras' habit, Lightning's, and our recipes' own.
LOGDIRS = ("runs", "logs", "lightning_logs", "tb_logs", "models/tensorboard")

_LOG_OPTIONS = ("max-size=10m",)
_START_S, _STOP_S = 60.0, 30.0


@dataclass(frozen=True)
class Wanted:
    """A tracker to bring up.

    Attributes:
        port: on this machine's loopback.
        logdirs: folders of the project with event files, besides the runs' own.
    """

    name: TrackerName
    port: int
    token: str
    logdirs: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def project_digest(store: RunStore) -> str:
    return store.record.name.rpartition("-")[2]


def network_name(store: RunStore) -> str:
    """The network that the project's services and runs share."""
    return f"seatrial-{project_digest(store)}"


def container_plan(wanted: Wanted, store: RunStore, engine: EngineFacts, host: Host, network: str) -> ContainerPlan:
    """The container. Pure.

    It sees what a run of this project sees, or less, and can write nothing but MLflow's own data.
    """
    user, userns, _ = caller_in(engine, host.uid, host.gid)
    mounts = [Mount(source=host.programs, target=_PROGRAMS, read_only=True)]
    words: list[str] = []
    if wanted.name == "tensorboard":
        mounts += [
            Mount(source=store.project, target=_PROJECT, read_only=True),
            Mount(source=store.project.joinpath(*EVENTS_FOLDER), target=_EVENTS, read_only=True),
        ]
        folders = dict.fromkeys((*LOGDIRS, *wanted.logdirs))
        words = [f"seatrial={_EVENTS}", *(f"{folder}={_PROJECT}/{folder}" for folder in folders)]
    else:
        mounts.append(Mount(source=store.project.joinpath(*MLFLOW_FOLDER), target=_DATA))
    on_host = network == "host"
    alias = _alias(wanted.name)
    listen = f"127.0.0.1:{wanted.port}" if on_host else f"0.0.0.0:{PORT}"
    names = [f"{name}:{wanted.port}" for name in ("localhost", "127.0.0.1")] + [f"{alias}:{PORT}"]
    return ContainerPlan(
        name=f"seatrial-{wanted.name}-{project_digest(store)}",
        hostname=None,
        command=(VENV_PYTHON, "-m", f"served.{wanted.name}", *words),
        user=user,
        userns=userns,
        security_opts=("label=disable",) if engine.selinux else (),
        workdir="/seatrial",
        env={
            "HOME": "/tmp",
            "PYTHONUNBUFFERED": "1",
            "SEATRIAL_TOKEN_SHA256": hashlib.sha256(wanted.token.encode()).hexdigest(),
            "SEATRIAL_LISTEN": listen,
            "SEATRIAL_HOSTS": ",".join(names),
        },
        mounts=tuple(mounts),
        tmpfs=(TMP, *_masks(mounts, store, host)),
        network=network,
        network_alias=None if on_host else alias,
        publish=() if on_host else (f"127.0.0.1:{wanted.port}:{PORT}",),
        pids=512,
        shm_bytes=64 << 20,
        labels={SERVICE_LABEL: wanted.name, PROJECT_LABEL: store.record.name},
        stop_timeout_s=5,
    )


@dataclass(frozen=True)
class Host:
    """This user and machine, as far as a tracker's container needs it.

    Attributes:
        programs: the copy of ``served`` that is mounted. state: the user's state folder, which stays out of sight.
    """

    uid: int
    gid: int
    programs: Path
    state: Path


def _masks(mounts: Sequence[Mount], store: RunStore, host: Host) -> tuple[Tmpfs, ...]:
    shown = [mount for mount in mounts if mount.target == _PROJECT]
    return masks(shown, [host.state, store.project / ".seatrial"])


def _alias(name: str) -> str:
    return f"seatrial-{name}"


def programs(state: Path) -> Path:
    """A copy of ``served`` where no run can write, under the digest of its text."""
    source = resources.files("seatrial.pipelines.trackers.served")
    texts = {each.name: each.read_bytes() for each in source.iterdir() if each.name.endswith(".py")}
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    folder = state / "trackers" / digest / "served"
    for name, data in texts.items():
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, data)
    return folder


def start(plan: ContainerPlan, image: str, engine: ContainerEngine, store: RunStore) -> str:
    """Start it; the container's ID. One of the same name that has ended goes first.

    Raises UsageError: the port is taken. EngineError: it does not start.
    """
    for mount in plan.mounts:
        if mount.target in (_EVENTS, _DATA):
            make_folder_inside(mount.source, store.project)
    check_sources(plan.mounts, store.project)
    engine.client.ask("container", "rm", "--force", plan.name)
    options = engine.options(plan, image).plus(detach=True)
    if "log_options" in options.options and engine.name == "docker":
        options = options.plus(log_options=[*_LOG_OPTIONS, "max-file=1", "compress=false"])
    ended = command.run(options.argv(engine.call), timeout_s=_START_S)
    if ended.exit_code != 0:
        engine.client.ask("container", "rm", "--force", plan.name)
        if "already allocated" in ended.stderr or "address already in use" in ended.stderr:
            raise port_taken(plan.labels[SERVICE_LABEL], int(plan.publish[0].split(":")[1]) if plan.publish else 0)
        raise start_error(engine.name, ended.argv, ended.exit_code, ended.stderr)
    return ended.stdout.strip().splitlines()[-1]


def make_network(engine: ContainerEngine, name: str, project: str) -> None:
    """Raises EngineError."""
    if engine.client.ask("network", "inspect", name).exit_code == 0:
        return
    made = engine.client.ask("network", "create", "--label", f"{PROJECT_LABEL}={project}", name)
    if made.exit_code != 0 and engine.client.ask("network", "inspect", name).exit_code != 0:
        raise EngineError(
            f"{engine.name} cannot make the network {name}: {last_line(made.stderr)}", run=f"{engine.name} network ls"
        )


def stop(service: Service, engine: ContainerEngine) -> None:
    """Stop and remove it, and its network unless something else is on it."""
    assert service.container is not None, "one of ours has a container"
    engine.client.ask("container", "stop", "-t", "5", service.container, timeout_s=_STOP_S)
    engine.client.ask("container", "rm", "--force", service.container)
    if service.network is not None:
        engine.client.ask("network", "rm", service.network)


def trouble(service: Service, engine: ContainerEngine) -> str | None:
    """Why it does not run, or None. Raises EngineUnavailableError."""
    assert service.container is not None, "one of ours has a container"
    inspected = engine.client.inspect("container", service.container)
    if inspected is None:
        return "its container is gone"
    state = inspected.get("State") or {}
    if state.get("Running"):
        return None
    return f"it ended with exit code {state.get('ExitCode')}"


def log(container: str, engine: ContainerEngine) -> str:
    """Its last line."""
    ended = engine.client.ask("container", "logs", "--tail", "20", container)
    return last_line(ended.stderr or ended.stdout)


def port_taken(name: str, port: int) -> UsageError:
    other = port + 1 if port < 65535 else 1024
    return UsageError(
        f"Port {port} of this machine is taken: {name} cannot listen there", run=f"seatrial up {name} --port {other}"
    )


def inside_url(name: str) -> str:
    """Its address on the project's network."""
    return f"http://{_alias(name)}:{PORT}"


def engine_of(service: Service, environ: Mapping[str, str]) -> ContainerEngine:
    from seatrial.backends import table

    assert service.engine is not None, "one of ours has an engine"
    return table.engine(service.engine, environ)
