"""Job → Plan → Run: choose and lease the GPUs, make the folders and the image, hand the secrets over, start."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seatrial.backends import table
from seatrial.backends.base import Backend, Echo, EngineFacts
from seatrial.backends.containers.run_options import proxies_with_login, read_env_file
from seatrial.errors import DiskError, GpuContractError, SeatrialError, UsageError
from seatrial.findings.catalogue import by_id
from seatrial.findings.device_code import ARCHITECTURES, keeps_code_for
from seatrial.findings.finding import Finding
from seatrial.images.recipes import require_data
from seatrial.job.gpus import Selection
from seatrial.job.in_container import IMAGE_UNKNOWN
from seatrial.job.model import Job
from seatrial.job.plan import Choice, Plan
from seatrial.job.reading.keras_names import with_keras_backend
from seatrial.job.script import ScriptFacts, source_facts, why_useless
from seatrial.planning import secrets
from seatrial.planning.host import AnotherMachine, HostFacts, another_machine, read_host, refuse_without_gpu
from seatrial.planning.plan import make_plan, select_gpus, with_defaults
from seatrial.planning.site import Site
from seatrial.recipe_names import WEIGHTS
from seatrial.runs.jobs import refuse_taken_port, warnings_of
from seatrial.runs.leases import default_folder, give_back, leases, record_start
from seatrial.runs.resume import has_checkpoint, resumed
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore, new_run_id, other_projects, project_key
from seatrial.runs.trackers import with_server
from seatrial.system import agent_archive
from seatrial.system.host import Caller, Host
from seatrial.system.text import as_typed

if TYPE_CHECKING:
    from seatrial.backends.kubernetes.pod import Manifest


#: Folder in the user's state folder with an archive of each version of the agent, and the Python that runs it.
AGENT = "agent"
#: Sockets of engines.
_ENGINES_PLACES = ("/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock")
#: Makes a context manager that yields a callback for the lines of a build or a pull.
Building = Callable[[], AbstractContextManager[Echo]]


class Prepared(NamedTuple):
    """A run with a plan and a folder; nothing has started. ``host``: with what became a secret on the way."""

    run: Run
    plan: Plan
    backend: Backend
    host: Host


class _Ground(NamedTuple):
    """Holds the facts that planning needs, read once."""

    job: Job
    script: ScriptFacts
    host: HostFacts
    backend: Backend
    engine: EngineFacts
    why_backend: Choice


def plan_only(job: Job, host: Host, *, builds: bool = False) -> Plan:
    """Plan a run, here or for ``image.target``, and make nothing; with ``builds``, wait longer for package indexes."""
    ground = _survey(job, host, offline=True)
    run = RunStore(job.project, host).run(new_run_id())
    here = ground.backend.traits.on_this_host
    another = another_machine(ground.job, ground.host) if here else None
    selection = another.selection() if another else None
    if here and another is None:
        held = leases(host).current(share=ground.job.gpus.share or 1.0)
        selection = select_gpus(ground.job, ground.script, ground.host, held)
    plan = _plan(ground, run, selection, host, another=another, offline=True, launches=builds)
    _refuse_cut_down_image(plan)
    place = next(each for each in run.place.parents if each.is_dir())
    copy = f"cp -r {as_typed(job.project)} ~/{as_typed(job.project.name + '-copy')}"
    closed = f"{place} is not writable, and a run writes its receipt there; to work in a copy: {copy}"
    return plan if builds or os.access(place, os.W_OK) else plan.changed(warnings=(*plan.warnings, closed))


def run_site(
    run: Run, project: Path, backend: Backend, engine: EngineFacts, host: HostFacts, *, launches: bool = True
) -> Site:
    """Return the facts that every plan for ``run`` needs; ``dataclasses.replace`` adds those of one."""
    folder, in_container = host.state_folder / AGENT, backend.traits.planner == "container"
    try:
        archive = agent_archive.build(folder, compiled=in_container)
    except DiskError:
        if launches:
            raise
        archive, in_container = folder / "agent.pyz", False  # a plan needs its name alone
    return Site(
        run_id=run.id,
        record=run.folder,
        outputs=run.outputs,
        project_cache=host.cache_folder.resolve() / "projects" / project_key(project),
        backend=backend,
        engine=engine,
        host=host,
        agent_archive=archive,
        copying=agent_archive.start_copying(folder, archive) if in_container else None,
        hidden=_hidden(project, backend, host) if backend.traits.isolates and backend.traits.on_this_host else (),
    )


def _hidden(project: Path, backend: Backend, host: HostFacts) -> tuple[Path, ...]:
    """Return folders that no container may see besides the state folder. Raises UsageError."""
    sockets = any(Path(place).is_relative_to(project) for place in _ENGINES_PLACES)
    if sockets or any(folder.is_relative_to(project) for folder in host.temporary_folders):
        what = "the engine's socket: a script there would be root on this machine"
        raise UsageError(
            f"The project {project} contains {what if sockets else 'temporary files and sockets of all your programs'}",
            cause=None if sockets else "a script there could change what they do, builds of other projects among them",
            run="cd FOLDER_OF_THE_SCRIPT && seatrial run …",
        )
    own, storage = host.own_folders, None
    if backend.images is not None and any(folder.is_relative_to(project) for folder in own):
        storage = backend.images.storage_root()  # of a rootless engine, in a home
    return (*own, default_folder(host), *other_projects(host), *filter(None, [storage]))


def manifests(plan: Plan, host: Host) -> list[Manifest]:
    """Render the objects of a cluster run. Raises UsageError."""
    from seatrial.backends.kubernetes.manifests import cluster_manifests

    return cluster_manifests(plan, agent_archive.build_for_pods(host.state_folder / AGENT, plan.agent.stand_ins))


def prepare(
    job: Job,
    host: Host,
    *,
    building: Building,
    interactive: bool = False,
    caller: Caller | None = None,
    notifies: bool = False,
) -> Prepared:
    """Make the run's folder and its plan, and lease its GPUs. A ready image that is not here is pulled.

    ``caller``: follows it while it runs; None: nobody, or it is a shell, which has the terminal itself. ``notifies``:
    run the commands of ``[notify]`` at its end; not for a search's trials. Raises SeatrialError: nothing is left behind
    then.
    """
    secrets.check_secrets(job, host)
    if job.serve is None:
        folder, mounted = job.data.source if job.data else None, any(each.target == "/data" for each in job.mounts)
        require_data(job.target, job.project, folder=folder, mounted=mounted)
        _require_model(job)
    store = RunStore(job.project, host)
    refuse_taken_port(job)
    ground = _survey(job, host)
    if job.name is not None and (earlier := store.unfinalised(job.name)) is not None:
        from seatrial.runs.status import finalise

        finalise(earlier, host)  # one that ended while nobody watched does not hold its name
    namesake = next(store.named(job.name), None) if job.name is not None else None
    run = store.create(new_run_id(), job.name)
    try:
        selection = _select_and_lease(ground, run, host)
        plan = _plan(ground, run, selection, host, interactive=interactive, caller=caller)
        if any((choice.what, choice.value) == IMAGE_UNKNOWN for choice in plan.choices):  # facts of it were guesses
            run.save_plan(plan)  # a pull may take minutes, or be killed
            _make_present(plan, ground.backend, building)
            plan = _plan(ground, run, selection, host, interactive=interactive, caller=caller)
        _refuse_cut_down_image(plan)
        if namesake is not None:
            moved = f'The name "{job.name}" now refers to this run; find the earlier one by its ID, {namesake.id}'
            plan = plan.changed(warnings=(*plan.warnings, moved))
        run.save_plan(plan)
        if notifies and job.notify.requested:
            from seatrial.runs.notify import keep_request  # a plan need not wait for it

            keep_request(run.folder, job.project, job.notify)
    except BaseException:
        leases(host).release(run.id)
        store.remove(run)
        raise
    return Prepared(run, plan, ground.backend, ground.host)


def _make_present(plan: Plan, backend: Backend, building: Building) -> None:
    """Pull the ready image, unless another process has: every other refusal comes before."""
    image, store = plan.image, backend.images
    assert image is not None and store is not None, "only a ready image of a store can be unknown"
    if store.image(image.tag) is not None:
        return
    from seatrial.images.build.build import pull  # most images are here

    with building() as echo:
        pull(store, image.tag, echo)


def _refuse_cut_down_image(plan: Plan) -> None:
    """Refuse an image with device code for other GPUs only. Raises GpuContractError."""
    image = plan.image
    kept = image.architectures or tuple(image.env.get(ARCHITECTURES, "").split()) if image else ()
    for gpu in plan.gpus if kept else ():
        if not keeps_code_for(kept, gpu.compute_capability or "0.0"):
            known, only = by_id("image-cut-down"), ", ".join(kept)
            message = f"The image has device code for {only} only, but {gpu.name} is {gpu.compute_capability}"
            raise GpuContractError(message, cause=known.cause, run=known.fix)


def without_cached(echo: Echo) -> Echo:
    """Return ``echo`` without the line of an image that exists, for many runs on one image."""
    from seatrial.images.build.progress import CACHED

    return lambda line: None if line == CACHED else echo(line)


def start(prepared: Prepared, host: Host, echo: Echo) -> None:
    """Build the image if it is not there, hand the secrets over, start the run detached.

    Raises SeatrialError or KeyboardInterrupt if it did not start, or was ended at once: its leases and secrets are
    taken back, and the reason is among its events.
    """
    from seatrial.runs.build import make_ready  # what builds, which a plan does not need

    run, plan, backend = prepared.run, prepared.plan, prepared.backend
    handle = None
    try:
        plan = make_ready(plan, backend, run, prepared.host, echo)
        handle = backend.start(plan, run.folder)
        record_start(run, plan, backend, handle, host)
    except BaseException as error:
        if handle is not None:  # nobody could find it again, or its user has stopped it
            backend.stop(handle, plan.job.grace_s if isinstance(error, KeyboardInterrupt) else 0)
        give_back(run, host)
        run.give_up()
        if isinstance(error, KeyboardInterrupt):
            words = "Stopped by Ctrl-C or SIGTERM before the start"
            run.record(Finding("stopped", "info", words, fix="seatrial run …").event())
        elif isinstance(error, SeatrialError):
            kind = "gpu-contract" if isinstance(error, GpuContractError) else "engine-refused"
            run.record(Finding(kind, "error", error.message, cause=error.cause, fix=error.run).event())
        raise


def _select_and_lease(ground: _Ground, run: Run, host: Host) -> Selection | None:
    """Choose and lease under one lock: two runs started together get different GPUs. A cluster chooses itself."""
    if not ground.backend.traits.on_this_host:
        return None
    if not ground.host.gpus:
        refuse_without_gpu(ground.job, ground.host)
        return select_gpus(ground.job, ground.script, ground.host, leased={})
    with leases(host).locked():
        share = ground.job.gpus.share
        selection = select_gpus(ground.job, ground.script, ground.host, leases(host).current(share=share or 1.0))
        uuids = [gpu.uuid for gpu in selection.gpus]
        leases(host).take(uuids, run.id, ground.backend.name, run.folder, ground.engine.address, share=share)
    return selection


def _survey(job: Job, host: Host, *, offline: bool = False) -> _Ground:
    """Read what planning needs. Raises TargetError if every run would fail; with ``offline`` the plan warns of it."""
    job = secrets.hide_notify(job)
    hidden = tuple(name for name in proxies_with_login(host) if name not in job.secrets)
    job = job.changed(secrets=(*job.secrets, *hidden))
    script = source_facts(job)  # first: a script that does not parse needs no engine
    useless = [*why_useless(job, script)]
    if useless and not offline:
        raise useless[0]
    advice = [": ".join(filter(None, (each.message, each.cause, each.run))).replace("\n", ", ") for each in useless]
    script = replace(script, misfits=(*advice, *script.misfits))
    facts = read_host(host)
    wanted = bool(facts.gpus) and job.gpus.kind != "none"
    backend, engine, why = table.choose(job.backend, host, gpus_wanted=wanted, offline=offline)
    script = _with_keras(job, script, host, inherits=not backend.traits.isolates)
    return _Ground(with_defaults(job, backend.traits), script, facts, backend, engine, why)


def _require_model(job: Job) -> None:
    """Check that ``run predict -- RECIPE …`` names a model that was trained. Raises UsageError, DataError."""
    if job.target.kind != "recipe" or job.target.value != "predict" or job.target.args[:1] in (("-h",), ("--help",)):
        return
    from seatrial.runs.models import of_recipe

    recipe = job.target.args[0] if job.target.args else ""
    if recipe not in WEIGHTS:
        known = ", ".join(WEIGHTS)
        raise UsageError(f"A prediction needs one of the models {known}", run='seatrial run predict -- spam "text…"')
    if not table.is_elsewhere(job.backend):
        of_recipe(recipe, job.models.source if job.models else job.project / "models")


def _with_keras(job: Job, script: ScriptFacts, host: Host, *, inherits: bool) -> ScriptFacts:
    """Add the framework that a Keras script needs and is checked with."""
    env: dict[str, str] = dict(host.env) if inherits else {}
    for path in job.env_files:
        env.update(read_env_file(path, host))
    env.update(job.env)
    home = Path(host.env["HOME"]) if inherits and host.env.get("HOME") else None
    wants_gpus = job.gpus.kind not in ("none", "auto") or (job.gpus.kind == "auto" and job.image.target is not None)
    return with_keras_backend(script, env, job.project, home, gpus=wants_gpus)


def _plan(
    ground: _Ground,
    run: Run,
    selection: Selection | None,
    host: Host,
    *,
    another: AnotherMachine | None = None,
    interactive: bool = False,
    offline: bool = False,
    launches: bool = True,
    caller: Caller | None = None,
) -> Plan:
    job, tracking, untracked = with_server(ground.job, ground.backend, host, run.id)
    on_a_cluster = not ground.backend.traits.on_this_host
    earlier = RunStore(job.project, host).find(job.resume) if job.resume else None
    if earlier is not None and on_a_cluster:  # by its full ID, which names its folder on the volume
        job = job.changed(resume=earlier.id)
    cluster = None
    if on_a_cluster:
        from seatrial.planning.pods import survey_cluster  # what speaks to clusters takes 80 ms to load

        cluster = survey_cluster(job, ground.host, offline=offline)
    secrets_folder = host.runtime_folder / run.id if job.secrets else None
    mounted = resumed(earlier) if earlier and not on_a_cluster else None
    site = run_site(run, job.project, ground.backend, ground.engine, ground.host, launches=launches)
    site = site._replace(secrets_folder=secrets_folder, resumed=mounted, selection=selection, another=another)
    site = site._replace(cluster=cluster, caller=caller, launches=launches)
    why_notify = "notified when the run has ended; the run does not wait"
    notify = [Choice(what="notify", value=job.notify.words, reason=why_notify)] if job.notify.requested else []
    anew = []
    if earlier is not None and not on_a_cluster and not has_checkpoint(earlier):
        where = "in $SEATRIAL_RUN_DIR/checkpoints and loads them from $SEATRIAL_RESUME_DIR"
        scratch = f"the target starts from scratch (a script saves checkpoints {where})"
        anew = [f"--resume {job.resume}: that run saved no checkpoint, so {scratch}"]
    plan = make_plan(job, site, ground.script, interactive=interactive)
    choices = (ground.why_backend, *plan.choices, *tracking, *notify)
    return plan.changed(choices=choices, warnings=(*plan.warnings, *anew, *untracked, *warnings_of(job)))


def shell(prepared: Prepared, host: Host, building: Building) -> int:
    """Run the plan on the caller's terminal; the shell's exit code. Leaves no run behind."""
    from seatrial.runs.build import make_ready

    try:
        with building() as echo:
            plan = make_ready(prepared.plan, prepared.backend, prepared.run, prepared.host, echo)
        return prepared.backend.shell(plan, prepared.run.folder)
    finally:
        give_back(prepared.run, host)
        RunStore(prepared.plan.job.project, host).remove(prepared.run)
