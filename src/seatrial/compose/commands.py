"""up, down and refresh of a Compose file's group."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.compose import up as starting
from seatrial.compose.client import compose_of, containers
from seatrial.compose.console import Console, UpRequest
from seatrial.compose.group import ENDED, Group, GroupStore, ended, identity
from seatrial.compose.plan import ComposeContext, checked_gpus, with_images
from seatrial.compose.read import COMPOSE_FILES, ComposeFile, find_files, read_compose, with_profiles
from seatrial.compose.receipt import show_receipt
from seatrial.compose.review import ComposeWarning, check_compose, compose_asks, short_form
from seatrial.compose.watch import Watch, engine_of, exit_code
from seatrial.errors import EXIT_DONE, SeatrialError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.asks import Ask
from seatrial.job.loading import load_job, read_file
from seatrial.job.model import Job, Target
from seatrial.planning.host import read_host
from seatrial.runs.status import finalise
from seatrial.runs.store import RunStore
from seatrial.system.command import own_program, spawn_detached
from seatrial.system.host import Host
from seatrial.system.records import Process
from seatrial.system.text import as_typed, from_here

#: Rules whose errors mean nothing to a run on the CPU.
_OF_GPUS = ("counted-from-outside", "replicas-share")


def up(request: UpRequest, console: Console, host: Host) -> int:
    """Run the Compose file; return the exit code of the command."""
    host = with_profiles(host, request.profiles)
    context = _context(request, host)
    warnings = check_compose(context.file)
    store = GroupStore(RunStore(request.project, host))
    if request.plan_only:
        planned = starting.plan_only(context, store.runs)
        console.show(_plan_text(planned, warnings, context.job.asks, whole=request.whole))
        return EXIT_DONE
    group = _living(store, context.file)
    again = group is not None
    if group is None:
        console.allow(context.job.changed(project=context.file.root))
        on_cpu = context.gpus is not None and context.gpus.kind == "none"
        for warning in warnings:  # what cannot work is refused before anything starts
            if warning.severity == "error" and not (on_cpu and warning.id in _OF_GPUS):
                raise UsageError(f"{warning.place}: {warning.message}", run=warning.place.show)
        for warning in warnings:
            console.note(str(warning))
        with console.working("starting"):
            group = starting.start(context, request, store, console)
    else:
        console.note(f"{group.name} is up already ({group.id}): going on with it")
    if request.detach:
        _detach(request, store, group, console)
        console.show(group.id)
        return EXIT_DONE
    watch = Watch(store, group, console, host, again=again)
    try:
        with console.working(f"{group.name} is up"):
            group = store.change_group(watch.to_the_end(), launcher=None)
    except BrokenPipeError:
        _detach(request, store, group, console)
        raise
    code = exit_code(group)
    show_receipt(group, store.runs, console, host, as_json=request.as_json)
    return code


def _plan_text(
    planned: starting.Planned, warnings: Iterable[ComposeWarning], asks: Sequence[Ask], *, whole: bool
) -> str:
    """Return what the project asks for, a table of services and warnings; ``whole``: as comments above the override."""
    file, rows = planned.file, [("SERVICE", "KIND", "ON", "COMMAND")]
    for name, service in file.services.items():
        plan, kind = planned.plans.get(name), "service" if service.why_service else "task"
        gpus = plan.devices if plan else "Compose alone"
        rows.append((name, kind, gpus, plan.shown_target if plan else service.image))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{file.path.name}, project {file.name}", ""]
    if asks:
        lines += ["This project asks for", *(f"  {ask.words}" for ask in asks), ""]
    width = shutil.get_terminal_size((10_000, 0)).columns if not whole else 10_000  # a file has no width
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines += [line if len(line) <= width else f"{line[: width - 1]}…" for line in table]
    lines += [f"{name}: warning: {text}" for name, plan in planned.plans.items() for text in plan.warnings]
    short = short_form(file)
    lines += [str(warning) for warning in (*warnings, *([short] if short else []))]
    if whole:
        return "".join(f"# {line}".rstrip() + "\n" for line in lines) + planned.text
    return "\n".join([*lines, "", "--verbose shows the override file"]) + "\n"


def down(runs: RunStore, reference: str | None, console: Console, host: Host) -> None:
    """Stop a group, or all; make receipts, remove containers, keep volumes. Raises RunNotFoundError."""
    store = GroupStore(runs)
    groups = store.all() if reference is None else [store.find(reference)]
    stopped = 0
    quiet = replace(console, write=lambda stream, data: None)
    for group in groups:
        now = refresh(store, group, host)
        if all(member.state in ENDED for member in now.members) and reference is None:
            continue
        watch = Watch(store, now, quiet, host, stops=True)
        with console.working(f"stopping {now.name or now.id}"):
            watch.to_the_end()
        console.note(f"{now.name or now.id} is down")
        stopped += 1
    if not stopped:
        console.note("nothing of this project is up")


def refresh(store: GroupStore, group: Group, host: Host) -> Group:
    """Return the group with the states that its members reached while nobody followed them; finalise their runs."""
    for member in group.members:
        if member.state == "running" and member.run is not None:
            run = store.runs.run(member.run)
            with suppress(SeatrialError, OSError):
                finalise(run, host)
                if (summary := run.summary()) is not None:
                    group = store.change(group, member.name, **ended(summary))
    backend = engine_of(group, host)
    try:
        if not (found := containers(backend, str(group.details.get("project")))):
            backend.client.confirm(backend.client.at)
    except SeatrialError:  # an engine that does not answer reports nothing new
        return group
    for member in group.members:
        container = found.get(member.name)
        if member.run is None and member.state == "running" and (container is None or container.status == "exited"):
            code = container.exit_code if container else None
            group = store.change(group, member.name, state="done" if code == 0 else "stopped", exit_code=code)
    return group


def _context(request: UpRequest, host: Host) -> ComposeContext:
    """Read everything before anything is decided. Raises SeatrialError."""
    folders = (request.folder, *request.folder.parents)
    ends = folders.index(request.project) + 1
    files = request.files or next(filter(None, (find_files(folder, host) for folder in folders[:ends])), ())
    if not files:
        raise _no_file(request)
    if request.backend and request.backend not in ("auto", "docker"):
        raise UsageError(f"A Compose file runs on docker, not on {request.backend}", run="seatrial up --on docker")
    backend, facts, _ = table.choose("docker", host)
    assert isinstance(backend, ContainerEngine)
    gpus = checked_gpus(request.gpus)
    job = _job(request.project, request.target)
    file = read_compose(files, compose_of(backend, host), request.names)
    try:
        job = job.changed(asks=(*job.asks, *compose_asks(file)))
    finally:
        if file.compose.copies is not None:
            file.compose.copies.cleanup()
    return ComposeContext(with_images(file, backend), job, backend, facts, read_host(host), gpus)


def _no_file(request: UpRequest) -> UsageError:
    """Return the error of a project without a Compose file. Raises ConfigError for what its seatrial.toml has."""
    if tracker := next((name for name in request.names if name in ("tensorboard", "mlflow")), None):
        problem = f"seatrial up {tracker} was removed: TensorBoard and MLflow are services of a Compose file"
        return UsageError(problem, cause="examples/trackers has such a file", run="seatrial up -f compose.yaml")
    file = next((Path(name) for name in request.names if name.endswith((".yaml", ".yml"))), None)
    if file is not None and file.is_file():
        return UsageError(f"{file} is a file: --file names it", run=f"seatrial up -f {as_typed(file)}")
    below = next((file for name in COMPOSE_FILES for file in sorted(request.folder.glob(f"*/{name}"))), None)
    one_run = below is None and bool({"target", "module"} & set(read_file(request.project)))
    cause = "Its seatrial.toml describes one run" if one_run else None
    run = "seatrial run" if one_run else f"seatrial up -f {as_typed(below)}" if below else "find . -name '*.y*ml'"
    return UsageError(f"No Compose file in {from_here(request.folder)}", cause=cause, run=run)


def _job(project: Path, target: str | None = None) -> Job:
    """Return what seatrial.toml has for every service: how images are built, criteria; without its target."""
    flags = {"image": {"ready": "compose", **({"target": target} if target else {})}}
    job = load_job(project, flags, recipes=RECIPES, without_container=table.runs_here).without_notify
    kept = {key: getattr(job, key) for key in ("criteria", "strict", "with_names", "watch", "image", "asks", "grace_s")}
    return Job(project=job.project, target=Target(kind="image", value=""), **kept)


def _living(store: GroupStore, file: ComposeFile) -> Group | None:
    """Return the group of this file that has not ended; dead ones are closed on the way."""
    for group in reversed(store.all()):
        if group.details.get("project") != file.name:
            continue
        if all(member.ended for member in group.members):
            return None
        if group.details.get("compose") is not None:
            return group
        if not group.followed:  # its command line was killed before Compose had it
            store.remove(group)
    return None


def _detach(request: UpRequest, store: GroupStore, group: Group, console: Console) -> None:
    """Start a process that follows the group, so that receipts are made without this one."""
    argv = own_program("up", "-C", str(request.project))
    argv += [word for file in group.details["files"] for word in ("-f", file)]
    argv += [word for name in request.profiles for word in ("--profile", name)]
    pid = spawn_detached([*argv, *request.names], output=store.folder(group.id) / "watch.log")
    if (follower := Process.of(pid)) is not None:  # until it has loaded and writes itself down
        store.change_group(group, launcher=identity(follower))
    name, where = group.name, store.runs.option
    commands = f"seatrial runs ls{where} lists it, seatrial runs stop {name}{where} ends it"
    console.note(f"{name} is up in the background; {commands}")
