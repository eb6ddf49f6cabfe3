"""make_plan: the one function that turns a job and facts into a Plan, for every backend."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from seatrial.backends.base import Planner, Traits
from seatrial.common.agent_plan import AgentPlan
from seatrial.errors import GpuContractError, UsageError
from seatrial.images.recipes import recipe
from seatrial.job.gpus import Selection, select
from seatrial.job.host_paths import missing_folders, missing_inputs, mlflow_paths, not_found
from seatrial.job.in_container import CONTAINER_SECRETS
from seatrial.job.keys import changeable
from seatrial.job.model import DataMount, Job
from seatrial.job.plan import Check, Choice, Plan, gpu_models
from seatrial.job.reading.constants import is_outside
from seatrial.job.reading.devices import verdicts
from seatrial.job.reading.signs import memory_note
from seatrial.job.script import ScriptFacts, source_digest
from seatrial.job.units import format_bytes
from seatrial.planning.horovod import horovod_parts, refuse_first
from seatrial.planning.host import HostFacts, git_commit
from seatrial.planning.launcher import Launcher, choose_launcher, restarts, with_rank
from seatrial.planning.options import env_flag_changes, gpu_memory_limit, refuse_options, server_changes
from seatrial.planning.secrets import without_secrets
from seatrial.planning.site import Parts, Site
from seatrial.planning.streams import choose_streams
from seatrial.system.text import as_typed, first_of


def _parts(planner: Planner, job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Plan the container, process or pods; a plan loads one of the modules."""
    if planner == "process":
        from seatrial.planning.process import process_parts as parts
    elif planner == "pods":
        from seatrial.planning.pods import cluster_parts as parts
    elif site.service is not None:
        from seatrial.planning.container.parts import service_parts as parts
    else:
        from seatrial.planning.container.parts import container_parts as parts
    return parts(job, site, script)


def with_defaults(job: Job, traits: Traits) -> Job:
    """Return the job with ./models as the models folder of a recipe that saves or opens a model there."""
    changes = server_changes(job, traits) if job.serve is not None else env_flag_changes(job)
    known = recipe(job.target.value) if job.target.kind == "recipe" else None
    if known is not None and job.models is None and traits.on_this_host and (known.trains or known.opens):
        changes["models"] = DataMount(source=job.project / "models", read_only=known.opens)
    return job.changed(**changes) if changes else job


def select_gpus(job: Job, script: ScriptFacts, host: HostFacts, leased: Mapping[str, str]) -> Selection:
    """Select this machine's GPUs for the run. Raises GpuContractError, with NVML's own reason, when there is none."""
    several = script.multi_gpu_evidence
    try:
        return select(job.gpus, host.gpus, leased=leased, load=host.load(), multi_gpu_evidence=several)
    except GpuContractError as error:
        raise GpuContractError(error.message, cause=host.inventory.error or error.cause, run=error.run) from None


def make_plan(job: Job, site: Site, script: ScriptFacts, *, interactive: bool = False) -> Plan:
    """Resolve a job that has its defaults; ``interactive``: a shell in place of the target.

    Raises SeatrialError: something named in the job does not exist or cannot be done on this backend.
    """
    traits = site.backend.traits
    refuse_options(job, traits, site.backend.name)
    refuse_first(job, script, traits)
    if interactive:  # nobody knows what will be typed
        script = replace(script, writes=tuple(replace(write, certain=False) for write in script.writes))
    parts = _parts(traits.planner, job, site, script)
    horovod = horovod_parts(job, script, parts)
    if not horovod.starts_ranks:
        torchrun, one_process = script.without_horovod_evidence
        script = replace(script, torchrun_evidence=torchrun, one_process_evidence=one_process)
    launcher, launcher_choice = choose_launcher(job, script, parts.gpus.count)
    if launcher == "none" and script.workers_evidence and parts.meeting.nodes > 1 and not parts.meeting.workers:
        problem = f"{job.target.value}: a PyTorchJob gives names to its first pod alone, and every worker needs one"
        cause = f"TensorFlow and JAX join one process on each node: {script.workers_evidence}"
        raise UsageError(problem, cause=cause, run="seatrial run … --kind job")
    streams = choose_streams(site, script, parts, launcher)
    changes, tuned = _changes(job, parts, interactive=interactive)
    more = {"terminal": streams.terminal, "input": streams.input, "stand_ins": horovod.stand_ins, "changes": changes}
    selected = site.selection.choices if site.selection else ()
    unchecked = f"files read at {first_of(script.unchecked, 3)}"
    computed = [Choice(what="not checked", value=unchecked, reason="their paths are computed")] * bool(script.unchecked)
    chosen = (*_folder_choice(job, traits), *computed, *selected, *parts.choices, *horovod.choices, launcher_choice)
    own = (*_memory_choices(job, script, parts), *tuned)
    unused = () if interactive else _refuse_the_cpu(job, site, script, parts, traits)
    reads = [each for each in script.reads if parts.cluster is None or not is_outside(each.path)]  # see pods
    lacking = [*missing_inputs(job, reads)]
    missing = [*lacking, *missing_folders(job, script.unmade), *mlflow_paths(job, script.files)]
    warned = (*streams.warnings, *horovod.warnings, *parts.warnings, *(parts.image.warnings if parts.image else ()))
    perhaps = [each for each in script.inputs if parts.cluster is None or not is_outside(each.path)]
    missing += not_found(job, perhaps, (*missing, *warned), () if lacking else script.unknown)
    missing = missing if parts.image is None or parts.image.build else []
    return Plan(
        run_id=site.run_id,
        created_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        job=job.changed(env=without_secrets(job.env, job)),
        backend=site.backend.name,
        engine=site.engine.address if site.cluster is None else site.cluster.facts.address,
        injection=parts.gpus.injection,
        gpus=parts.gpus.gpus,
        image=parts.image,
        container=streams.container,
        cluster=parts.cluster,
        interpreter=site.interpreter.words if site.interpreter else None,
        python=parts.python,
        venv=parts.venv,
        agent=_agent(job, site, script, parts, "none" if interactive else launcher, interactive=interactive, **more),
        choices=(*chosen, *own),
        warnings=(*script.misfits, *unused, *missing, *warned),
        git_commit=git_commit(job.project),
        driver_version=site.host.inventory.driver_version if site.selection and not site.another else None,
    )


def _folder_choice(job: Job, traits: Traits) -> tuple[Choice, ...]:
    if job.workdir is None or job.workdir.startswith("/"):
        return ()
    may_be_inside = job.image.ready or job.mounts or job.backend == "k8s"
    above, there = traits.isolates and is_outside(f"{job.workdir}/"), job.project / job.workdir
    if not may_be_inside and (above or not there.is_dir()):
        why = "a container has no folder above the project" if above else f"folder {there} not found"
        run, instead = f"ls {as_typed(job.project)}", (job.workdir, ["."] * above)
        raise UsageError(f"--workdir {job.workdir}: {why}", run=run, instead=instead)
    reason = f"relative to the project, {job.project}; -C . makes the current folder the project"
    return (Choice(what="working directory", value=job.workdir, reason=reason),)


def _refuse_the_cpu(job: Job, site: Site, script: ScriptFacts, parts: Parts, traits: Traits) -> tuple[str, ...]:
    """Return a warning about GPUs that the script leaves idle. Raises UsageError: certain, and --gpus is not auto."""
    gpus = parts.gpus.count if job.target.kind in ("script", "module") and job.serve is None else 0
    machine = len(site.host.gpus) if traits.planner == "process" else None
    for verdict in verdicts(script.devices, gpus, machine) if gpus else ():
        if verdict.refused and job.gpus.kind != "auto":
            run = f"{verdict.change}   # or on the CPU: seatrial run … --gpus none"
            raise UsageError(f"the run requests --gpus {job.gpus}, but {verdict.words}", run=run)
        return (f"{verdict.words}; {verdict.change}",)
    return ()


def _memory_choices(job: Job, script: ScriptFacts, parts: Parts) -> Iterator[Choice]:
    """Yield the GPU memory limit, and the variables of script, job and image that are mistaken for one."""
    if (limit := gpu_memory_limit(job, script, parts.gpus.gpus)) is not None:
        option = "--gpu-memory" if job.gpu_memory_bytes is not None else f"--gpus {job.gpus.share}"
        reason = f"{option}: on each GPU, for each process; CUDA itself takes another 0.5 to 1 GB"
        yield Choice(what="GPU memory", value=format_bytes(limit), reason=reason)
    env = {**(parts.image.env if parts.image else {}), **job.env}
    for name, value in (env | {name: value for name, (value, _) in script.variables.items()}).items():
        if note := memory_note(name, value):
            where = f" ({script.variables[name][1]})" if name in script.variables else ""
            yield Choice(what=name, value=value, reason=f"{note}{where}; --gpu-memory SIZE is one")


def _agent(
    job: Job, site: Site, script: ScriptFacts, parts: Parts, launcher: Launcher, *, interactive: bool, **more: Any
) -> AgentPlan:
    """Return the agent's plan; ``more``: further fields of it."""
    gpus, meeting, mounts = parts.gpus, parts.meeting, parts.container.mounts if parts.container else ()
    filled = tuple(each.target for each in mounts if changeable(each, mounts))
    under_torchrun, root = launcher == "torchrun", parts.places.scripts.rstrip("/") or parts.places.project
    evidence_dir = parts.places.run if interactive and parts.container else None
    secrets_dir = str(site.secrets_folder) if parts.python else CONTAINER_SECRETS
    return AgentPlan(
        run_id=site.run_id,
        argv=("bash",) if interactive else with_rank(parts.argv, job, script, launcher),
        script=None if interactive else parts.script,
        workdir=parts.places.project,
        run_dir=parts.places.run,
        evidence_dir=str(site.record) if parts.python else evidence_dir,
        launcher=launcher,
        processes=max(1, gpus.count) if under_torchrun else 1,
        **{**vars(meeting), "workers": meeting.workers if launcher == "none" else ()},
        restarts=restarts(job, keeps_checkpoints=parts.keeps_checkpoints) if under_torchrun else 0,
        # As after ``pip install -e .``.
        python_path=tuple(root if folder == "." else f"{root}/{folder}" for folder in script.import_roots),
        env={**parts.places.env(), "SEATRIAL_RUN_ID": site.run_id, **parts.env},
        secrets=job.secrets,
        secrets_dir=secrets_dir if job.secrets else None,
        gpu_mode=gpus.mode,
        gpus=gpus.gpus,
        gpu_count=None if gpus.gpus else gpus.count or None,
        check=_check(job, script, gpus.count),
        gpu_memory_bytes=gpu_memory_limit(job, script, gpus.gpus),
        measure_steps=not (job.no_hook or interactive or job.target.kind == "recipe"),  # recipes report their own
        tune=None if job.tuning is None else job.tuning.model_dump(mode="json"),
        grace_s=job.grace_s,
        timeout_s=job.timeout_s,
        hang_after_s=job.watch.hang_after_s,
        alert_command=job.watch.command,
        interactive=interactive,
        unkept=() if interactive else parts.unkept,
        filled=site.service.filled if site.service else filled,
        pod_restarts=parts.cluster.restarts if parts.cluster else None,
        **more,
    )


def _changes(job: Job, parts: Parts, *, interactive: bool) -> tuple[dict[str, Any] | None, tuple[Choice, ...]]:
    """Return the changes that the hook makes to a script, and the sentence about them; none for recipes and shells."""
    if (tuning := job.tuning) is not None:
        value = f"at most {tuning.budget_s:g} s of trials, {tuning.steps} steps or {tuning.seconds:g} s each"
        return None, (Choice(what="tune", value=value, reason="seatrial tune: changes are tried one after the other"),)
    changes = job.tune.set_ones()
    if not changes or job.no_tune or interactive or job.target.kind == "recipe":
        return None, ()
    again = f"seatrial tune {shlex.join(['-m'] * (job.target.kind == 'module') + [job.target.value])} --save"
    if (other := _measured_on(job, parts)) is not None:
        reason = f"[tune] was measured on {other} and is not applied; for this one: {again}"
        return None, (Choice(what="changes", value="none", reason=reason),)
    reason = "[tune] of the project's file; --no-tune: without"
    if job.tune.digest is None or job.tune.gpu is None:
        reason += f"; it does not name the script's digest and the GPU that it was measured on; to add them: {again}"
    return changes, (Choice(what="changes", value=job.tune.words, reason=reason),)


def _measured_on(job: Job, parts: Parts) -> str | None:
    """Return the script, or the GPU, that ``[tune]`` was measured on where this run has another; else None."""
    tune, gpus = job.tune, parts.gpus
    if tune.script not in (None, job.target.value):
        return tune.script
    if tune.digest is not None and tune.digest != source_digest(job):
        return f"{job.target.value} as it was before an edit"
    if tune.gpu is not None and (tune.gpu != gpu_models(gpus.gpus) or (gpus.count and not gpus.gpus)):
        return "the CPU" if tune.gpu == gpu_models(()) else tune.gpu
    return None


def _check(job: Job, script: ScriptFacts, gpus: int) -> Check:
    if not gpus:
        return "none"
    if job.serve is not None and job.serve.suffix == ".onnx":  # an image without torch
        return "driver"
    if job.target.kind == "recipe":
        return "torch"
    if script.framework != "torch" and not script.needs_framework:
        return "driver"
    return next((check for check in get_args(Check) if check == script.framework), "driver")
