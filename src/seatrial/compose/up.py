"""Bring a Compose file up: build, plan, lease, write the override, and hand over to Compose."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.backends.containers.mounts import held_sources, make_host_files, real_source
from seatrial.compose.client import Compose, containers
from seatrial.compose.console import Console, UpRequest
from seatrial.compose.group import Group, GroupStore, Member, identity
from seatrial.compose.override import override
from seatrial.compose.plan import ComposeContext, becomes_run, compare_service, plan_service, select, with_images
from seatrial.compose.read import ComposeFile, profiles_in
from seatrial.compose.review import short_form
from seatrial.errors import EngineError, SeatrialError, UsageError
from seatrial.images.build.build import pull
from seatrial.images.build.failure import failing_step, last_meaningful, readable
from seatrial.images.build.progress import READY
from seatrial.job.gpus import Selection
from seatrial.job.in_container import CONTAINER_PLAN
from seatrial.job.plan import ContainerPlan, Plan
from seatrial.job.units import format_seconds
from seatrial.runs.leases import leases
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore, new_run_id
from seatrial.system import command, nofollow
from seatrial.system.address import taken
from seatrial.system.files import write_atomically
from seatrial.system.host import Host
from seatrial.system.project_files import is_there, read_bytes, read_text
from seatrial.system.records import Process
from seatrial.system.text import from_here

#: Files in the record of a group.
RENDERED, OVERRIDE, BUILD_OVERRIDE, LOG = "rendered.json", "override.yaml", "build.yaml", "compose.log"
#: Folder of a group, while it is built, with copies of what it is built from.
COPIES = "copies"


class Planned(NamedTuple):
    """Holds the services that are about to start.

    ``plans``: of the services that become runs. ``others``: what those get that do not, and what the command gets back
    of its environment. ``text``: the override file.
    """

    file: ComposeFile
    plans: Mapping[str, Plan]
    others: Mapping[str, tuple[ContainerPlan, dict[str, str]]]
    text: str

    @property
    def containers(self) -> list[ContainerPlan]:
        of_runs = filter(None, (plan.container for plan in self.plans.values()))
        return [*of_runs, *(each for each, _ in self.others.values())]


def plan_only(context: ComposeContext, store: RunStore) -> Planned:
    """Return what ``up`` would do, as far as it is known without building; change nothing."""
    context = replace(context, file=with_images(context.file, context.backend, pythons=True))
    runs = {name: store.run(new_run_id()) for name in context.file.services}
    return _planned(context, _selected(context), make=lambda name: runs[name], folder=store.root)


def start(context: ComposeContext, request: UpRequest, store: GroupStore, console: Console) -> Group:
    """Do everything until Compose has taken over; return the group. Raises SeatrialError with nothing left behind."""
    _selected(context)  # GPUs that are not there, and ports that are taken, end it before a build
    _refuse_taken_ports(context)
    group = _new_group(context, request, store)
    made: dict[str, Run] = {}
    try:
        rendered = store.folder(group.id) / RENDERED
        write_atomically(rendered, context.file.rendered.encode(), mode=0o600)
        file = replace(context.file, compose=replace(context.file.compose, rendered=rendered))
        context = replace(context, file=file)
        _make_images(context, store.folder(group.id), console)
        context = replace(context, file=with_images(context.file, context.backend, pythons=True))
        with leases(context.host).locked():
            selections = _selected(context)

            def make(name: str) -> Run:
                if (earlier := store.runs.unfinalised(name)) is not None:  # it has the name, and has ended unwatched
                    from seatrial.runs.status import finalise  # rare, and it loads all judges

                    finalise(earlier, context.host)
                run = made[name] = store.runs.create(new_run_id(), name)
                uuids = [gpu.uuid for gpu in selections[name].gpus] if name in selections else []
                leases(context.host).take(uuids, run.id, context.backend.name, run.folder, context.engine.address)
                return run

            planned = _planned(context, selections, make=make, folder=store.folder(group.id))
        _save(planned, made, store.runs, context)
        for name, plan in planned.plans.items():
            console.note(f"{name}: run {plan.run_id} on {plan.devices.replace('CPU', 'the CPU')}")
            for warning in plan.warnings:
                console.note(f"{name}: warning: {warning}")
        if (short := short_form(planned.file)) is not None:
            console.note(str(short))
        folder = store.folder(group.id)
        write_atomically(folder / OVERRIDE, planned.text.encode(), mode=0o600)
        compose = replace(context.file.compose, override=folder / OVERRIDE)
        _check_override(compose, planned)
        group = _with_runs(store, group, planned, made)
        with contextlib.ExitStack() as held:  # the service's user may be any; the folders above let nobody else in
            for container in planned.containers:
                held.enter_context(held_sources(container, mode=0o644))
            process = compose.bring_up(folder / LOG, *request.names)
        return hand_over(store, group, made.values(), process, context.host)
    except BaseException:
        for run in made.values():
            leases(context.host).release(run.id)
            with contextlib.suppress(SeatrialError, OSError):
                store.runs.remove(run)
        store.remove(group)
        raise


def _refuse_taken_ports(context: ComposeContext) -> None:
    """Refuse a port that another program on this machine has and a service publishes. Raises UsageError."""
    address = context.engine.address
    if address is None or not address.endpoint.startswith(("unix:", "/")):
        return
    for name, service in context.file.services.items():
        for port in service.ports:
            host, published = str(port.get("host_ip") or "0.0.0.0"), str(port.get("published"))
            is_one = published.isdecimal() and port.get("protocol", "tcp") == "tcp"
            error = taken(host, int(published)) if is_one else None
            if error and error.errno == errno.EADDRINUSE and name not in containers(context.backend, context.file.name):
                message = f"{context.file.place(name, 'ports')}: port {published} of this machine is taken"
                raise UsageError(message, run=f"ss -ltnp 'sport = :{published}'   # shows the program that has it")


def _selected(context: ComposeContext) -> dict[str, Selection]:
    """Return the GPUs that each service gets. Raises GpuContractError, GpuRequestError."""
    return select(context, leases(context.host).current())


def _planned(
    context: ComposeContext, selections: Mapping[str, Selection], *, make: Callable[[str], Run], folder: Path
) -> Planned:
    """Plan the services; ``folder`` is the group's, where a service that becomes no run has its orders."""
    file, asks, plans = context.file, context.asks(), dict[str, Plan]()
    others: dict[str, tuple[ContainerPlan, dict[str, str]]] = {}
    for name, service in file.services.items():
        ask, python = asks.get(name), service.facts.python if service.facts else "python3"
        if becomes_run(service, ask, python):
            selection = selections.get(name, Selection((), ()))
            plans[name] = plan_service(context, service, make(name), selection=selection, ask=ask)
        elif found := compare_service(context, service, Run(place := folder / f"service-{name}", place)):
            others[name] = found
    added = {name: container for name, (container, _) in others.items()}
    builds = {name: _network(context) for name, service in file.services.items() if service.build is not None}
    return Planned(file, plans, others, override(file.services, plans, file.short_waits, added, builds=builds))


def _new_group(context: ComposeContext, request: UpRequest, store: GroupStore) -> Group:
    file = context.file
    members = tuple(
        Member(name, role="task" if service.is_task else "service", target=f"{from_here(file.path)}:{name}")
        for name, service in file.services.items()
    )
    details = {
        "project": file.name,
        "files": [str(path) for path in file.compose.files],
        "names": list(request.names),
        "profiles": profiles_in(context.host),
        "engine": context.engine.address and context.engine.address.model_dump(),
    }
    return store.create(members, name=request.name or file.name, details=details)


def _make_images(context: ComposeContext, folder: Path, console: Console) -> None:
    """Build what is built, as it may have changed, and pull what is not here and must be looked into."""
    file, compose = context.file, context.file.compose
    if built := [name for name, service in file.services.items() if service.build is not None]:
        path = folder / BUILD_OVERRIDE
        (folder / COPIES).mkdir(mode=0o700)
        try:
            builds = {name: _copied(context, name, folder / COPIES / str(at)) for at, name in enumerate(built)}
            text = override(file.services, {}, (), builds=builds, secrets=_copied_secrets(context, folder / COPIES))
            write_atomically(path, text.encode(), mode=0o600)
            _build(replace(compose, override=path), file, built, console)
        finally:
            with nofollow.folder(folder) as own:
                nofollow.remove_tree(own, COPIES)
    for name, service in file.services.items():
        looked_into = service.build is None and (service.is_task or service.by_path or name in context.asks())
        if looked_into and context.backend.images.image(service.image) is None:
            with console.building() as progress:
                pull(context.backend.images, service.image, progress)


def _network(context: ComposeContext) -> dict[str, Any]:
    network = context.job.image.build_network
    return {} if network == "default" else {"network": network}


def _copied(context: ComposeContext, name: str, folder: Path) -> dict[str, Any]:
    """Copy what an image is built from, as the client opens by path and follows links; return the build's new keys."""
    build, copies = context.file.services[name].build or {}, dict[str, str]()
    dockerfile, keys = Path(build["context"], build.get("dockerfile") or "Dockerfile"), _network(context)
    for key, place in {"": build["context"], **(build.get("additional_contexts") or {})}.items():
        if place.startswith("/"):  # neither an address nor another service's image
            copy = copies[key] = str(folder / str(len(copies)))
            ignored = () if key else _ignored(Path(place), dockerfile)
            hidden = [context.host.state_folder.stat()]
            nofollow.copy_tree(_source(context, place), Path(copy), names=ignored, hidden=hidden)
    if own := copies.pop("", None):
        keys["context"] = own
        at = Path(own, build.get("dockerfile") or "Dockerfile")
        if not (build.get("dockerfile_inline") or (at.is_file() and os.path.realpath(at) == f"{own}/{at.name}")):
            keys |= _copied_dockerfile(context, dockerfile, folder)
    return keys | ({"additional_contexts": copies} if copies else {})


def _copied_dockerfile(context: ComposeContext, dockerfile: Path, folder: Path) -> dict[str, Any]:
    """Copy a Dockerfile that is elsewhere than at the top of what is built."""
    (into := folder / "dockerfile").mkdir(parents=True)
    for place in filter(is_there, (dockerfile, Path(f"{dockerfile}.dockerignore"))):
        write_atomically(into / place.name, read_bytes(_source(context, place), inside=None, refusal=UsageError))
    return {"dockerfile": str(into / dockerfile.name)} if is_there(dockerfile) else {}


def _copied_secrets(context: ComposeContext, folder: Path) -> dict[str, Any]:
    """Copy the files that builds get as secrets."""
    copies, known = dict[str, Any](), context.file.config.get("secrets") or {}
    builds = [service.build or {} for service in context.file.services.values()]
    for name in {each["source"]: None for build in builds for each in build.get("secrets") or ()}:
        if file := known.get(name, {}).get("file"):
            copies[name] = {"file": str(copy := folder / f"secret-{len(copies)}")}
            write_atomically(copy, read_bytes(_source(context, file), inside=None, refusal=UsageError), mode=0o600)
    return copies


def _ignored(folder: Path, dockerfile: Path) -> set[str]:
    """Return the folders that .dockerignore leaves out whole: one that brings something back leaves out none."""
    lines = []
    if not is_there(Path(f"{dockerfile}.dockerignore")):
        with contextlib.suppress(SeatrialError, OSError):
            lines = read_text(folder / ".dockerignore", inside=folder).splitlines()
    names = {line.strip().strip("/") for line in lines}
    return set() if any(name.startswith("!") for name in names) else names


def _source(context: ComposeContext, place: str | Path) -> Path:
    """Resolve the links of a path. Raises UsageError: one leads out of the project."""
    return real_source(Path(place), context.file.root, "build", state=context.host.state_folder)


def _build(compose: Compose, file: ComposeFile, built: list[str], console: Console) -> None:
    """Build the images of these services. Raises EngineError."""
    console.note(f"building {', '.join(built)}")
    argv = compose.argv("--progress", "plain", "build", *built)
    began_s = time.monotonic()
    with console.building() as progress:

        def show(line: str) -> None:
            if text := readable(line):
                progress(text)

        ended = command.stream(argv, show, env=compose.host.env, cwd=compose.files[0].parent)
        if ended.exit_code != 0:
            raise build_error(ended, file, built)
        progress(f"{READY}: {', '.join(built)}, built in {format_seconds(time.monotonic() - began_s)}")


def build_error(ended: command.Completed, file: ComposeFile, built: list[str]) -> SeatrialError:
    """Return the finding that matches a failed build; else its last meaningful line."""
    from seatrial.findings.catalogue import AT_BUILD
    from seatrial.findings.match import match_text

    found = match_text(ended.stdout, AT_BUILD)
    place = file.place(built[0], "build")
    if found:
        return EngineError(f"{place}: {found[0].message}", cause=found[0].cause, run=found[0].fix)
    reason = last_meaningful(failing_step(ended.stdout.splitlines()))
    run = f"docker compose -f {from_here(file.path)} build"
    return EngineError(f"{place}: {', '.join(built)} cannot be built: {reason}", run=run)


def _save(planned: Planned, made: Mapping[str, Run], store: RunStore, context: ComposeContext) -> None:
    for other, back in planned.others.values():
        orders = next(mount.source for mount in other.mounts if mount.target == CONTAINER_PLAN)
        orders.parent.mkdir(mode=0o700)
        write_atomically(orders, json.dumps({"env": back}).encode())
    for name, plan in planned.plans.items():
        run = made[name]
        run.save_plan(plan)
        if planned.file.services[name].user not in ("root", "0", str(os.getuid())):
            store.let_any_user_write(run)
    for container in planned.containers:
        make_host_files(container, context.job.project)


def _check_override(compose: Compose, planned: Planned) -> None:
    """Check that Compose can read both files together before anything starts. Raises EngineError."""
    ended = compose.ask("config", "--quiet", *planned.file.services)
    if ended.exit_code != 0:
        problem = f"Compose does not take what seatrial adds to {from_here(planned.file.path)}: {ended.last_line()}"
        cause = "!reset and !override in an override file need Docker Compose 2.24"
        raise EngineError(problem, cause=cause, run="docker compose version")


def _with_runs(store: GroupStore, group: Group, planned: Planned, made: Mapping[str, Run]) -> Group:
    members = tuple(
        replace(
            group.member(name),
            role="task" if service.is_task else "service",
            needs=planned.file.needs[name],
            run=made[name].id if name in made else None,
            gpus=len(planned.plans[name].gpus) if name in planned.plans else 0,
            details={"why_service": service.why_service},
        )
        for name, service in planned.file.services.items()
    )
    return store.change_group(group, members=members)


def hand_over(store: GroupStore, group: Group, runs: Iterable[Run], process: Process, host: Host) -> Group:
    """Give runs and leases that wait for their start to Compose's process, no longer to this one."""
    for run in runs:
        run.hand_over(process)
        leases(host).change(run.id, launcher=process)
    return store.change_group(group, details={**group.details, "compose": identity(process)})
