"""up and down for trackers: TensorBoard and MLflow beside a project's runs, a group each, under their own names."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from seatrial.backends import table
from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.errors import EXIT_DONE, EngineError, EngineUnavailableError, SeatrialError, UsageError
from seatrial.images.building.build import build
from seatrial.images.origin import origin_labels
from seatrial.images.sources import pip_conf
from seatrial.images.trackers import tracker_image
from seatrial.job.config import ServicesTable
from seatrial.job.loading import read_services
from seatrial.job.model import Job, Target
from seatrial.pipelines.group import ENDED, Group, GroupStore, Member
from seatrial.pipelines.request import Front, UpRequest
from seatrial.pipelines.trackers import container
from seatrial.pipelines.trackers.container import Host, Wanted
from seatrial.runs import mlflow_server
from seatrial.runs.services import TRACKERS, Service, ServiceStore, TrackerName
from seatrial.runs.store import RunStore
from seatrial.runs.tracked import URI
from seatrial.system.state import state_folder
from seatrial.system.without_login import without_login

#: Their own defaults, which people know.
PORTS: Mapping[str, int] = {"tensorboard": 6006, "mlflow": 5000}

#: Until the page answers: 8 s on an idle machine are ours to keep, a loaded one gets longer.
_PATIENCE_S = 90.0


def up(request: UpRequest, front: Front, environ: Mapping[str, str]) -> int:
    """Bring them up, or say where they are; they stay up when this ends."""
    if request.as_written or request.fix or request.profiles or request.gpus or request.notify:
        raise UsageError(
            "--as-written, --fix, --profile, --gpus and --notify mean nothing for a tracker",
            run="seatrial up tensorboard",
        )
    services, image, asks = read_services(request.project)
    names = [name for name in TRACKERS if name in (request.names or services.named)]
    if request.port is not None and len(names) != 1:
        raise UsageError(
            f"--port is for one of {' and '.join(names)}", run=f"seatrial up {names[0]} --port {request.port}"
        )
    job = Job(project=request.project, target=Target(kind="recipe", value="digits"), image=image, asks=asks)
    store = RunStore(request.project, environ)
    if request.plan_only:
        front.show("\n".join(_plan_line(name, request, services, store, job, environ) for name in names))
        return EXIT_DONE
    brought = [_bring_up(name, request, services, store, job, front, environ) for name in names]
    if request.as_json:
        told = [{"name": each.name, "url": each.url, "token": each.token} for each in brought]
        front.show(json.dumps(told, indent=1))
    else:
        for each in brought:
            front.show(f"{each.name}: {each.door}")
    return EXIT_DONE


def down(store: GroupStore, group: Group, front: Front, environ: Mapping[str, str]) -> None:
    """Stop a tracker; what it has stays in the project."""
    services = ServiceStore(store.runs.record)
    for member in group.members:
        service = services.read(member.name)
        if service is not None and service.ours:
            container.stop(service, container.engine_of(service, environ))
        services.remove(member.name)
        if member.state not in ENDED:
            store.change(group, member.name, state="stopped", ended_at=time.time())


def refresh(store: GroupStore, group: Group, environ: Mapping[str, str]) -> Group:
    """A tracker whose container has ended is stopped."""
    services = ServiceStore(store.runs.record)
    for member in group.members:
        if member.state in ENDED:
            continue
        service = services.read(member.name)
        try:
            why = _trouble(service, environ) if service is not None else "it was taken down"
        except EngineUnavailableError as error:
            group = group.changed(member.name, why=error.message)
            continue
        if why is not None:
            group = store.change(group, member.name, state="stopped", why=why, ended_at=time.time())
    return group


def _trouble(service: Service, environ: Mapping[str, str]) -> str | None:
    return container.trouble(service, container.engine_of(service, environ)) if service.ours else None


def _bring_up(
    name: TrackerName,
    request: UpRequest,
    services: ServicesTable,
    store: RunStore,
    job: Job,
    front: Front,
    environ: Mapping[str, str],
) -> Service:
    records = ServiceStore(store.record)
    if name == "mlflow" and environ.get(URI):
        service = _users_server(environ)
        mlflow_server.require(service, environ)
        front.say(f"mlflow: the server of {URI}; no container is started")
    else:
        earlier = records.read(name)
        if earlier is not None and (running := _still_up(earlier, request, environ)):
            return running
        engine, facts = _engine(request.backend or (earlier.engine if earlier else None), environ)
        front.allow(job)
        wanted = _wanted(name, request, services, records, earlier)
        service = _start(wanted, engine, facts, store, job, front)
    records.save(service)
    _note(GroupStore(store), service)
    return service


def _users_server(environ: Mapping[str, str]) -> Service:
    """Raises UsageError: MLFLOW_TRACKING_URI names no server."""
    given = environ[URI]
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{URI}={without_login(given)[:200]} is no server's address", run=f"env -u {URI} seatrial up mlflow"
        )
    if parts.username or parts.password:
        raise UsageError(
            f"{URI} has a login in it, which every run and receipt would show",
            run="export MLFLOW_TRACKING_USERNAME=… MLFLOW_TRACKING_PASSWORD=…   # and the address without",
        )
    return Service("mlflow", given.rstrip("/") + "/")


def _still_up(service: Service, request: UpRequest, environ: Mapping[str, str]) -> Service | None:
    """The tracker as it runs already. Raises UsageError where another port or engine is asked for."""
    if not service.ours or _trouble(service, environ) is not None:
        return None
    asked = request.port is not None and urlsplit(service.url).port != request.port
    if asked or request.backend not in (None, "auto", service.engine):
        raise UsageError(
            f"The tracker {service.name} is up already: {service.url} in {service.engine}",
            run=f"seatrial runs stop {service.name}",
        )
    return service


def _engine(asked: str | None, environ: Mapping[str, str]) -> tuple[ContainerEngine, EngineFacts]:
    """The engine asked for, or the first that works. Raises EngineUnavailableError, UsageError."""
    if asked not in (None, "auto", *table.ENGINES):
        raise UsageError(f"A tracker runs in a container, not on {asked}", run="seatrial up tensorboard --on docker")
    names = [*table.ENGINES] if asked in (None, "auto") else [str(asked)]
    missing = []
    for name in names:
        engine = table.engine(name, environ)
        facts = engine.facts()
        if facts.available:
            return engine, facts
        missing.append(facts)
    raise EngineUnavailableError(
        "Trackers need Docker or Podman, and neither is available"
        if len(missing) > 1
        else missing[0].reason.capitalize(),
        cause="; ".join(facts.reason for facts in missing) if len(missing) > 1 else None,
        run=missing[0].fix or "seatrial doctor",
    )


def _wanted(
    name: TrackerName, request: UpRequest, services: ServicesTable, records: ServiceStore, earlier: Service | None
) -> Wanted:
    options = getattr(services, name)
    kept = urlsplit(earlier.url).port if earlier is not None and earlier.ours else None
    port = request.port or (options.port if options else None) or kept or PORTS[name]
    logdirs = services.tensorboard.logdirs if name == "tensorboard" and services.tensorboard else ()
    return Wanted(name, port, "" if request.plan_only else records.token(name), logdirs)


def _start(
    wanted: Wanted, engine: ContainerEngine, facts: EngineFacts, store: RunStore, job: Job, front: Front
) -> Service:
    _refuse_taken(wanted)  # before minutes of building
    image = tracker_image(wanted.name, job)
    if engine.images.image(image.tag) is None:
        front.say(f"{wanted.name}: building its image, once")
        with front.building() as tell:
            pip, labels = pip_conf(job.image), origin_labels(job)
            tell(build(image, store=engine.images, progress=tell, pip_conf=pip, labels=labels).words(None))
    started = time.monotonic()
    host = _host(store)
    network = container.network_name(store)
    container_id, on = None, network
    try:
        container.make_network(engine, network, store.record.name)
        plan = container.container_plan(wanted, store, facts, host, network)
        container_id = container.start(plan, image.tag, engine, store)
    except UsageError:
        raise
    except EngineError:
        if engine.name != "podman":
            raise
        # Rootless or nested, Podman may be unable to make networks; on the host's, it listens on the loopback address.
        on = "host"
        plan = container.container_plan(wanted, store, facts, host, on)
        container_id = container.start(plan, image.tag, engine, store)
    service = Service(
        wanted.name,
        wanted.url,
        token=wanted.token,
        engine=engine.name,
        container=container_id,
        network=None if on == "host" else on,
        inside_url=None if on == "host" else container.inside_url(wanted.name),
    )
    try:
        _wait(service, engine)
    except BaseException:
        container.stop(service, engine)
        raise
    front.say(f"{wanted.name}: up after {time.monotonic() - started:.1f} s, in {engine.name}")
    return service


def _host(store: RunStore) -> Host:
    state = state_folder(os.environ) if store.record.parent.name != "projects" else store.record.parents[1]
    return Host(os.getuid(), os.getgid(), container.programs(state), state)


def _refuse_taken(wanted: Wanted) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("127.0.0.1", wanted.port))
        except OSError as error:
            raise container.port_taken(wanted.name, wanted.port) from error


def _wait(service: Service, engine: ContainerEngine) -> None:
    """Until the page answers. Raises EngineError: it ended, or never does."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(service.url, headers={"Authorization": f"Bearer {service.token}"})
    deadline, looked = time.monotonic() + _PATIENCE_S, time.monotonic()
    while time.monotonic() < deadline:
        try:
            with opener.open(request, timeout=5):
                return
        except (OSError, ValueError):
            time.sleep(0.1)
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            if (why := container.trouble(service, engine)) is not None:
                said = container.log(service.container or "", engine)
                raise EngineError(
                    f"{service.name} does not start: {why}", cause=said, run=f"seatrial up {service.name} --plan"
                )
    raise EngineError(
        f"{service.name} does not answer at {service.url} after {_PATIENCE_S:.0f} s",
        cause=container.log(service.container or "", engine),
        run=f"{engine.name} ps; seatrial up {service.name}",
    )


def _note(groups: GroupStore, service: Service) -> None:
    """A group of the tracker's name: ``seatrial runs stop NAME`` and ``runs ls`` know it by that."""
    for group in groups.all():
        if group.kind == "trackers" and group.name == service.name:
            groups.remove(group)
    member = Member(service.name, "service", service.url, state="running", started_at=time.time())
    group = groups.create("trackers", (member,), name=service.name)
    groups.change_group(group, launcher=None)  # it stays up by itself


def _plan_line(
    name: TrackerName,
    request: UpRequest,
    services: ServicesTable,
    store: RunStore,
    job: Job,
    environ: Mapping[str, str],
) -> str:
    if name == "mlflow" and environ.get(URI):
        return f"mlflow: {_users_server(environ).url} of {URI}; no container"
    records = ServiceStore(store.record)
    try:
        engine, facts = _engine(request.backend, environ)
    except SeatrialError as error:
        return f"{name}: {error.message}"
    earlier = records.read(name)
    wanted = _wanted(name, request, services, records, earlier)
    plan = container.container_plan(wanted, store, facts, _host(store), container.network_name(store))
    tag = tracker_image(name, job).tag
    import shlex

    return f"# {name}: {wanted.url}\n{shlex.join(engine.options(plan, tag).plus(detach=True).argv(engine.call))}"
