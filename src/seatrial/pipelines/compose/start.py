"""Bringing a Compose file up: build, plan, lease, write the override, and hand over to Compose."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.errors import EngineError, SeatrialError
from seatrial.images.building.build_failure import failing_step, last_meaningful, readable
from seatrial.images.building.pull import pull
from seatrial.images.building.ready import READY
from seatrial.job.gpus import Selection
from seatrial.job.plan import COMPANION_FOLDER, Plan
from seatrial.job.units import format_seconds
from seatrial.pipelines.compose.client import Compose
from seatrial.pipelines.compose.file_names import profiles_in
from seatrial.pipelines.compose.order import Wait, added_waits, needs
from seatrial.pipelines.compose.override import override
from seatrial.pipelines.compose.plans import Ground, becomes_run, plan_service, select, with_images
from seatrial.pipelines.compose.reading import ComposeFile
from seatrial.pipelines.group import Group, GroupStore, Member
from seatrial.pipelines.request import Front, UpRequest
from seatrial.runs.launching_process import LaunchingProcess
from seatrial.runs.liveness import leases
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore, new_run_id
from seatrial.system import command
from seatrial.system.files import make_folder, write_atomically
from seatrial.system.typed_path import from_here

#: Files in the record of a group.
OVERRIDE, BUILD_OVERRIDE, LOG = "override.yaml", "build.yaml", "compose.log"


@dataclass(frozen=True)
class Planned:
    """What is about to be brought up.

    Attributes:
        plans: of the services that become runs. waits: those that the override adds.
    """

    file: ComposeFile
    plans: Mapping[str, Plan]
    waits: tuple[Wait, ...]
    text: str


def plan_only(ground: Ground, request: UpRequest, store: RunStore) -> Planned:
    """What ``up`` would do, as far as it can be told without building; changes nothing."""
    ground = _looked_into(ground)
    waits, selections = _selected(ground, request)
    file = ground.file
    runs = {name: store.run(new_run_id()) for name in file.services}
    return _planned(ground, waits, selections, make=lambda name: runs[name])


def start(ground: Ground, request: UpRequest, store: GroupStore, front: Front) -> Group:
    """Everything up to the moment when Compose has taken over; the group, with its runs planned.

    Raises SeatrialError: nothing has started, and nothing is left behind.
    """
    _selected(ground, request)  # GPUs that are not there end it before a build
    group = _new_group(ground, request, store)
    made: dict[str, Run] = {}
    try:
        _make_images(ground, store.folder(group.id), front)
        ground = _looked_into(ground)
        with leases(ground.environ).locked():
            waits, selections = _selected(ground, request)

            def make(name: str) -> Run:
                run = _new_run(store.runs, name, ground.environ)
                made[name] = run
                uuids = [gpu.uuid for gpu in selections[name].gpus] if name in selections else []
                leases(ground.environ).take(uuids, run.id, ground.backend.name, run.folder, ground.engine.address)
                return run

            planned = _planned(ground, waits, selections, make=make)
        _save(planned, made, store.runs)
        _say(planned, front)
        path = store.folder(group.id) / OVERRIDE
        write_atomically(path, planned.text.encode(), mode=0o600)
        _check_override(ground, path, planned)
        for name, plan in planned.plans.items():
            if plan.companion is not None:
                front.say(f"{name}: checking its GPUs from beside, as its image has no Python")
                ground.backend.check_beside(plan, made[name].folder)
        group = _with_runs(store, group, planned, made)
        process = launch(ground.file.compose.with_override(path), store.folder(group.id), *request.names)
        return hand_over(store, group, made.values(), process, ground.environ)
    except BaseException:
        for run in made.values():
            leases(ground.environ).release(run.id)
            with contextlib.suppress(SeatrialError, OSError):
                store.runs.remove(run)
        store.remove(group)
        raise


def _looked_into(ground: Ground) -> Ground:
    """With what the images that are here say of themselves."""
    file, images = with_images(ground.file, ground.backend, pythons=True)
    return replace(ground, file=file, images=images)


def _selected(ground: Ground, request: UpRequest) -> tuple[tuple[Wait, ...], dict[str, Selection]]:
    """Who waits for whom, and which GPUs each gets. Raises GpuContractError, GpuRequestError."""
    waits = () if request.as_written else tuple(added_waits(ground.file))
    leased = leases(ground.environ).current()
    return waits, select(ground, needs(ground.file, list(waits)), leased)


def _planned(
    ground: Ground,
    waits: tuple[Wait, ...],
    selections: Mapping[str, Selection],
    *,
    make: Callable[[str], Run],
) -> Planned:
    file, asks, plans = ground.file, ground.asks(), dict[str, Plan]()
    none = Selection((), ())
    for name, service in file.services.items():
        image, ask = ground.images.get(name), asks.get(name)
        python = image.python if image else "python3"
        if becomes_run(service, ask, python):
            plans[name] = plan_service(
                ground,
                service,
                make(name),
                selection=selections.get(name, none),
                image=image,
                ask=ask,
            )
    network = ground.job.image.build_network
    return Planned(file, plans, waits, override(file.services, plans, waits, build_network=network))


def _new_group(ground: Ground, request: UpRequest, store: GroupStore) -> Group:
    file = ground.file
    members = tuple(
        Member(name, role="task" if service.is_task else "service", target=f"{from_here(file.path)}:{name}")
        for name, service in file.services.items()
    )
    details = {
        "project": file.name,
        "files": [str(path) for path in file.compose.files],
        "names": list(request.names),
        "profiles": profiles_in(ground.environ),
        "backend": ground.backend.name,
        "engine": ground.engine.address and ground.engine.address.model_dump(),
    }
    return store.create(members, name=request.name or file.name, details=details)


def _new_run(store: RunStore, name: str, environ: Mapping[str, str]) -> Run:
    """Named as its service; a run of the name that has ended unwatched does not hold it."""
    if (earlier := store.unfinalised(name)) is not None:
        from seatrial.runs.finalise import finalise  # rare, and it loads all that judges

        finalise(earlier, environ)
    return store.create(new_run_id(), name)


def _make_images(ground: Ground, folder: Path, front: Front) -> None:
    """Build what is built, as it may have changed, and pull what is not here and must be looked into."""
    file, compose = ground.file, ground.file.compose
    built = [name for name, service in file.services.items() if service.build is not None]
    if built:
        network = ground.job.image.build_network
        path = folder / BUILD_OVERRIDE
        write_atomically(path, override(file.services, {}, (), build_network=network).encode(), mode=0o600)
        _build(compose.with_override(path), file, built, front)
    for name, service in file.services.items():
        looked_into = service.build is None and (service.is_task or name in ground.asks())
        if looked_into and ground.backend.images.image(service.image) is None:
            with front.building() as tell:
                pull(ground.backend.images, service.image, tell)


def _build(compose: Compose, file: ComposeFile, built: list[str], front: Front) -> None:
    """Raises EngineError."""
    front.say(f"building {', '.join(built)}")
    argv = compose.argv("--progress", "plain", "build", *built)
    began_s = time.monotonic()
    with front.building() as tell:

        def progress(line: str) -> None:
            if text := readable(line):
                tell(text)

        ended = command.stream(argv, progress, env=compose.environ, cwd=compose.files[0].parent)
        if ended.exit_code != 0:
            raise build_error(ended, file, built)
        tell(f"{READY}: {', '.join(built)}, built in {format_seconds(time.monotonic() - began_s)}")


def build_error(ended: command.Completed, file: ComposeFile, built: list[str]) -> SeatrialError:
    """What the catalogue of findings says of a build that failed; else its last line that says something."""
    from seatrial.findings.catalogue import AT_BUILD
    from seatrial.findings.match import match_text

    found = match_text(ended.stdout, AT_BUILD)
    place = file.place(built[0], "build")
    if found:
        return EngineError(f"{place}: {found[0].message}", cause=found[0].cause, run=found[0].fix)
    reason = last_meaningful(failing_step(ended.stdout.splitlines()))
    return EngineError(
        f"{place}: {', '.join(built)} cannot be built: {reason}",
        run=f"docker compose -f {from_here(file.path)} build",
    )


def _save(planned: Planned, made: Mapping[str, Run], store: RunStore) -> None:
    for name, plan in planned.plans.items():
        run = made[name]
        run.save_plan(plan)
        if planned.file.services[name].user not in ("root", "0", str(os.getuid())):
            store.let_any_user_write(run)
        # The service's user may be any; the folders above let nobody else of this machine in.
        (run.folder / "agent.json").chmod(0o644)
        if plan.companion is not None:
            make_folder(run.folder / COMPANION_FOLDER)


def _say(planned: Planned, front: Front) -> None:
    for name, plan in planned.plans.items():
        gpus = ", ".join(f"GPU {gpu.mig or gpu.index} ({gpu.name})" for gpu in plan.gpus) or "the CPU"
        front.say(f"{name}: run {plan.run_id} on {gpus}")
        for warning in plan.warnings:
            front.say(f"{name}: warning: {warning}")
    for wait in planned.waits:
        front.say(f"{wait.why}: {wait.reader} waits until {wait.writer} has ended well (--as-written: it does not)")


def _check_override(ground: Ground, path: Path, planned: Planned) -> None:
    """Compose reads both together before anything starts."""
    compose = ground.file.compose.with_override(path)
    ended = compose.ask("config", "--quiet", *planned.file.services)
    if ended.exit_code != 0:
        raise EngineError(
            f"Compose does not take what seatrial adds to {from_here(ground.file.path)}: {ended.last_line()}",
            cause="!reset and !override in an override file need Docker Compose 2.24",
            run="docker compose version",
        )


def _with_runs(store: GroupStore, group: Group, planned: Planned, made: Mapping[str, Run]) -> Group:
    waits = needs(planned.file, list(planned.waits))
    members = []
    for name, service in planned.file.services.items():
        plan = planned.plans.get(name)
        members.append(
            Member(
                name,
                role="task" if service.is_task else "service",
                target=group.member(name).target,
                needs=waits[name],
                run=made[name].id if name in made else None,
                gpus=len(plan.gpus) if plan else 0,
                details={"why_service": service.why_service},
            )
        )
    return store.change_group(group, members=tuple(members))


def launch(compose: Compose, folder: Path, *words: str) -> LaunchingProcess:
    """``docker compose up --detach`` as a process of its own: it goes on when this one is killed.

    Args:
        compose: with the override. folder: the group's record. words: further options, and services.
    """
    argv = compose.argv("--ansi", "never", "up", "--detach", "--no-build", *words)
    pid = command.spawn_detached(argv, output=folder / LOG, env=compose.environ, cwd=compose.files[0].parent)
    deadline_s = time.monotonic() + 1.0
    while (process := LaunchingProcess.of(pid)) is None and time.monotonic() < deadline_s:
        time.sleep(0.005)
    if process is None:
        raise EngineError("docker compose ended at once", run=f"cat {folder / LOG}")
    return process


def hand_over(
    store: GroupStore, group: Group, runs: Iterable[Run], process: LaunchingProcess, environ: Mapping[str, str]
) -> Group:
    """Runs and leases that wait for their start belong to Compose's process from now on, not to this one."""
    for run in runs:
        run.hand_over(process)
        leases(environ).hand_over(run.id, process)
    return store.change_group(group, details={**group.details, "compose": [process.pid, process.started_ticks]})
