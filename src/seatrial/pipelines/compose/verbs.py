"""up, down and refresh for Compose files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.errors import EXIT_DONE, EXIT_TARGET_FAILED, EngineUnavailableError, SeatrialError, UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.loading import load_job, read_file
from seatrial.job.model import Job, Target
from seatrial.job.plan import EngineAddress
from seatrial.pipelines.compose import start as starting
from seatrial.pipelines.compose.client import Compose
from seatrial.pipelines.compose.containers import containers
from seatrial.pipelines.compose.file_names import find_files, with_profiles
from seatrial.pipelines.compose.fix import fixed_path, fixed_text
from seatrial.pipelines.compose.lint import check_compose
from seatrial.pipelines.compose.plans import Ground, checked_gpus, with_images
from seatrial.pipelines.compose.provider import compose_of, docker_compose
from seatrial.pipelines.compose.reading import ComposeFile, read_compose
from seatrial.pipelines.compose.remark import Remark
from seatrial.pipelines.compose.rules.ports import is_taken, published
from seatrial.pipelines.compose.shown import plan_text, remark_lines
from seatrial.pipelines.compose.watch import Watch, exit_code
from seatrial.pipelines.group import Group, GroupStore
from seatrial.pipelines.group import refresh as refresh_runs
from seatrial.pipelines.receipt import request_notify, show_receipt
from seatrial.pipelines.request import Front, UpRequest
from seatrial.planning.host import read_host
from seatrial.runs.store import RunStore
from seatrial.system.command import spawn_detached
from seatrial.system.files import write_atomically
from seatrial.system.typed_path import as_typed, from_here

#: Rules whose errors mean nothing to a run on the CPU.
_OF_GPUS = ("counted-from-outside", "replicas-share")


def up(request: UpRequest, front: Front, environ: Mapping[str, str]) -> int:
    """Run the Compose file; the exit code of the command."""
    environ = with_profiles(environ, request.profiles)
    ground = _ground(request, environ)
    remarks = check_compose(ground.file)
    if request.fix:
        return _fix(ground.file, remarks, front)
    store = GroupStore(RunStore(request.project, environ))
    if request.plan_only:
        planned = starting.plan_only(ground, request, store.runs)
        front.show(plan_text(planned, remarks))
        return EXIT_DONE
    front.allow(ground.job)
    group = _living(store, ground.file)
    again = group is not None
    if group is None:
        _refuse(ground, remarks)
        mended = () if request.as_written else ("starts-too-early",)  # the override does it, and says so
        for line in remark_lines([each for each in remarks if each.severity != "hint" and each.id not in mended]):
            front.say(line)
        group = starting.start(ground, request, store, front)
    else:
        front.say(f"{group.name} is up already ({group.id}): going on with it")
    if request.notify or not again:
        request_notify(request, store.folder(group.id), front, environ)
    if request.detach:
        return _detach(request, store, group, front)
    compose = _compose(store, group, environ)
    backend = _engine_of(group, environ)
    group = Watch(store, group, compose, backend, front, environ, again=again).to_the_end()
    group = store.change_group(group, launcher=None)
    code = exit_code(group)
    show_receipt(group, store.runs, front, environ, as_json=request.as_json, exit_code=code)
    return code


def down(store: GroupStore, group: Group, front: Front, environ: Mapping[str, str]) -> None:
    """Stop a group's runs and services, make the receipts, take containers and networks away; volumes stay."""
    backend = _engine_of(group, environ)
    compose = _compose(store, group, environ)
    quiet = replace(front, write=lambda stream, data: None)
    watch = Watch(store, group, compose, backend, quiet, environ)
    watch.stop_now()
    watch.to_the_end()


def refresh(store: GroupStore, group: Group, environ: Mapping[str, str]) -> Group:
    """With what became of the members while nobody looked."""
    group = refresh_runs(store, group, environ)
    backend = _engine_of(group, environ)
    try:
        found = containers(backend, str(group.details.get("project")))
        if not found:
            backend.client.confirm(backend.client.at)
    except SeatrialError:  # an engine that does not answer tells nothing new
        return group
    for member in group.members:
        container = found.get(member.name)
        if member.run is None and member.state == "running" and (container is None or container.status == "exited"):
            code = container.exit_code if container else None
            group = store.change(group, member.name, state="done" if code == 0 else "stopped", exit_code=code)
    return group


def _no_file(request: UpRequest) -> UsageError:
    if not request.project.is_dir():
        there = next(parent for parent in request.project.parents if parent.is_dir())
        return UsageError(f"There is no project folder {request.project}", run=f"ls {as_typed(there)}")
    if tracker := next((name for name in request.names if name in ("tensorboard", "mlflow")), None):
        return UsageError(
            f"seatrial up {tracker} is retired: TensorBoard and MLflow are services of a Compose file",
            cause="examples/trackers has such a file",
            run="seatrial up -f compose.yaml",
        )
    file = next((Path(name) for name in request.names if name.endswith((".yaml", ".yml"))), None)
    if file is not None and file.is_file():
        return UsageError(f"{file} is a file: --file names it", run=f"seatrial up -f {as_typed(file)}")
    if {"target", "module"} & set(read_file(request.project)):
        cause = "its seatrial.toml describes one run"
        return UsageError(f"There is no Compose file in {from_here(request.project)}", cause=cause, run="seatrial run")
    return UsageError(f"There is no Compose file in {from_here(request.project)}", run="seatrial up -f FILE")


def _ground(request: UpRequest, environ: Mapping[str, str]) -> Ground:
    """Everything that is read before anything is decided. Raises SeatrialError."""
    backend = _engine(request.backend or "auto", environ)
    files = request.files or find_files(request.project, environ)
    if not files:
        raise _no_file(request)
    facts = backend.facts()
    if not facts.available:
        raise EngineUnavailableError(facts.reason[:1].upper() + facts.reason[1:], run=facts.fix)
    backend = backend if facts.address is None else backend.bound_to(facts.address)
    gpus = checked_gpus(request.gpus)
    file = read_compose(files, compose_of(backend, environ), request.names)
    file, _ = with_images(file, backend)
    job = _job(request.project, request.notify)
    # Podman's API passes no CDI names on (its command line does): device nodes and the driver's libraries then.
    facts = replace(facts, cdi_devices=()) if backend.name == "podman" else facts
    return Ground(file, job, backend, facts, read_host(environ), environ, gpus)


def _engine(name: str, environ: Mapping[str, str]) -> ContainerEngine:
    if name == "auto":
        docker, podman = (table.engine(each, environ) for each in ("docker", "podman"))
        there = docker.facts().available or not podman.facts().available or docker_compose(environ) is None
        return docker if there else podman
    if name not in table.ENGINES:
        raise UsageError(f"A Compose file runs on docker or podman, not on {name}", run="seatrial up --on docker")
    return table.engine(name, environ)


def _engine_of(group: Group, environ: Mapping[str, str]) -> ContainerEngine:
    """The engine on which a group was brought up; one of before 0062: the one that the environment leads to."""
    engine = _engine(str(group.details.get("backend", "docker")), environ)
    at = group.details.get("engine")
    return engine if at is None else engine.bound_to(EngineAddress.model_validate(at))


def _job(project: Path, notify: tuple[str, ...]) -> Job:
    """What seatrial.toml says for every service: how images are built, criteria. Its target is not meant here."""
    job = load_job(
        project,
        {"image": {"ready": "compose"}, "notify": notify},
        recipes=RECIPES,
        without_container=lambda name: table.place(name) == "process",
    )
    kept = {
        key: getattr(job, key)
        for key in ("criteria", "strict", "with_names", "watch", "image", "asks", "grace_s", "notify")
    }
    return Job(project=job.project, target=Target(kind="image", value=""), **kept)


def _refuse(ground: Ground, remarks: list[Remark]) -> None:
    """What cannot work ends it before anything starts. Raises UsageError."""
    on_cpu = ground.gpus is not None and ground.gpus.kind == "none"
    for remark in remarks:
        if remark.severity == "error" and not (on_cpu and remark.id in _OF_GPUS):
            line = remark.place.line
            raise UsageError(f"{remark.place}: {remark.message}", run=f"sed -n {line}p {as_typed(remark.place.file)}")
    ours = containers(ground.backend, ground.file.name)
    for name, service in ground.file.services.items():
        live = name in ours and ours[name].status == "running"
        for address, port, protocol, _ in [] if live else published(service):
            if protocol == "tcp" and is_taken(address, port):
                place = ground.file.place(name, "ports", str(port))
                raise UsageError(
                    f"{place}: {name} publishes port {port}, which another program has",
                    run=f"sudo ss -ltnp sport = :{port}",
                )


def _living(store: GroupStore, file: ComposeFile) -> Group | None:
    """The group of this file that has not ended, whoever looked after it; dead ones are closed on the way."""
    for group in reversed(store.all()):
        if group.details.get("project") != file.name:
            continue
        if all(member.ended for member in group.members):
            return None
        if group.details.get("compose") is None:  # its command line was killed before Compose had it
            store.remove(group)
            continue
        return group
    return None


def _compose(store: GroupStore, group: Group, environ: Mapping[str, str]) -> Compose:
    backend = _engine_of(group, environ)
    files = tuple(Path(file) for file in group.details["files"])
    override = store.folder(group.id) / starting.OVERRIDE
    profiles = tuple(group.details.get("profiles") or ())
    return replace(compose_of(backend, with_profiles(environ, profiles)), files=files, override=override)


def _detach(request: UpRequest, store: GroupStore, group: Group, front: Front) -> int:
    """Leave a process that follows it, so that receipts come while nobody looks."""
    backend = str(group.details.get("backend", "docker"))
    argv = [sys.executable, "-m", "seatrial", "up", "-C", str(request.project), "--on", backend]
    argv += [word for file in request.files for word in ("-f", str(file))]
    argv += [word for name in request.profiles for word in ("--profile", name)]
    spawn_detached([*argv, *request.names], output=store.folder(group.id) / "watch.log")
    front.show(group.id)
    front.say(f"{group.name} is up in the background; seatrial runs ls shows it, seatrial runs stop --all ends it")
    return EXIT_DONE


def _fix(file: ComposeFile, remarks: list[Remark], front: Front) -> int:
    """Write mended copies beside the files."""
    for line in remark_lines(remarks):
        front.say(line)
    answered: list[Remark] = []
    for document in file.lines.documents:
        text, done = fixed_text(document, remarks)
        answered += done
        if done:
            path = fixed_path(document.path)
            write_atomically(path, text.encode())
            front.say(f"{len(done)} of {len(remarks)} mended in {from_here(path)}; yours is as it was")
            front.show(f"docker compose -f {as_typed(path)} config")
    if not answered:
        front.say("nothing that --fix mends" if remarks else "nothing to mend")
    left = [each for each in remarks if each not in answered and each.severity == "error"]
    return EXIT_TARGET_FAILED if left else EXIT_DONE
