"""Job + facts → Plan. Reads the project's files and asks the engine what images it has; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from seatrial.backends import container, container_limits, injection
from seatrial.backends.base import Backend, EngineFacts
from seatrial.backends.env_file import read_env_file
from seatrial.errors import GpuContractError, UsageError
from seatrial.events import WEBHOOK_SECRET
from seatrial.images.plan import plan_image
from seatrial.images.recipes import recipe
from seatrial.images.wheel import write_wheel
from seatrial.job.gpus import GpuRequest, Selection, select
from seatrial.job.model import DataMount, Job
from seatrial.job.plan import (
    AGENT_PYTHON_FLAGS,
    CONTAINER_AGENT,
    CONTAINER_PLAN,
    CONTAINER_RECIPES,
    CONTAINER_RUN,
    CONTAINER_SECRETS,
    AgentPlan,
    Choice,
    ContainerPlan,
    Gpu,
    ImagePlan,
    Injection,
    Mount,
    Plan,
    VenvPlan,
)
from seatrial.job.script import ScriptFacts
from seatrial.job.units import format_bytes
from seatrial.runs import without_agent
from seatrial.runs.facts import HostFacts, git_commit
from seatrial.runs.handover import targets_secrets
from seatrial.runs.hosts import with_hosts
from seatrial.runs.local_python import choose_python
from seatrial.runs.recipe_env import with_env_flags
from seatrial.runs.resume import checkpoints_of, resume_mount
from seatrial.runs.store import Run, project_key
from seatrial.runs.target_command import Places, container_places, local_places, target_argv

#: A rank that was killed or ran out of memory starts again this often, with its peers.
RECIPE_RESTARTS = 3


@dataclass(frozen=True)
class Site:
    """Where a plan will happen: the backend, what it said of itself, this host, and the run.

    Attributes:
        agent_archive: where no target can write.
        secrets_folder: where the run's secrets are handed over, or None when it has none.
        resume_from: the earlier run to go on from, or None.
        may_pull: a ready image that is not here may be pulled to look inside.
    """

    run: Run
    backend: Backend
    engine: EngineFacts
    host: HostFacts
    agent_archive: Path
    secrets_folder: Path | None = None
    resume_from: Run | None = None
    may_pull: bool = True


def with_defaults(job: Job) -> Job:
    """Recipes save their models to ./models unless told otherwise; scripts save where they please."""
    job = with_env_flags(job)
    if _is_training_recipe(job) and job.models is None and job.backend != "k8s":
        return job.model_copy(update={"models": DataMount(source=job.project / "models", read_only=False)})
    return job


def _is_training_recipe(job: Job) -> bool:
    return job.target.kind == "recipe" and recipe(job.target.value).trains


def select_gpus(job: Job, script: ScriptFacts, host: HostFacts, leased: Mapping[str, str]) -> Selection:
    """The GPUs of this run. Raises GpuContractError, with NVML's own reason, when there is none to choose from."""
    try:
        return select(
            GpuRequest.parse(job.gpus),
            host.gpus,
            leased=leased,
            load=host.load(),
            multi_gpu_evidence=script.multi_gpu_evidence,
        )
    except GpuContractError as error:
        raise GpuContractError(error.message, cause=host.inventory.error or error.cause, run=error.run) from None


def make_plan(job: Job, site: Site, script: ScriptFacts, selection: Selection, *, interactive: bool = False) -> Plan:
    """Resolve a job.

    Args:
        job: with its defaults filled in.
        selection: GPUs already chosen (and leased, when the plan is about to be launched).
        interactive: an interactive shell in place of the target.

    Raises:
        SeatrialError: something named in the job is not there or cannot be done on this backend.
    """
    gpus = selection.gpus
    parts = _local(job, site, script, gpus) if site.backend.name == "local" else _in_container(job, site, script, gpus)
    launcher, launcher_choice = _launcher(job, script, len(gpus))
    agent = AgentPlan(
        run_id=site.run.id,
        argv=("bash",) if interactive else parts.argv,
        script=None if interactive else parts.script_index,
        workdir=parts.places.project,
        run_dir=parts.places.run,
        evidence_dir=_evidence_dir(parts, site, interactive=interactive),
        launcher="none" if interactive else launcher,
        processes=max(1, len(gpus)) if launcher == "torchrun" and not interactive else 1,
        restarts=_restarts(job, launcher),
        env={**parts.places.env(), "SEATRIAL_RUN_ID": site.run.id, **parts.env},
        secrets=targets_secrets(job),
        secrets_dir=(CONTAINER_SECRETS if parts.container else str(site.secrets_folder)) if job.secrets else None,
        gpu_mode=_gpu_mode(job, gpus),
        gpus=gpus,
        check=_check(job, script, gpus),
        gpu_memory_bytes=_gpu_memory_limit(job, script, gpus),
        grace_s=job.grace_s,
        timeout_s=job.timeout_s,
        hang_after_s=job.watch.hang_after_s,
        alert_command=job.watch.command,
        alert_webhook=WEBHOOK_SECRET if job.watch.webhook else None,
        interactive=interactive,
        host_sampled=parts.companion is not None,
    )
    return Plan(
        run_id=site.run.id,
        created_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        job=job.model_copy(update={"env": _without_secrets(job.env, job)}),
        backend=site.backend.name,  # type: ignore[arg-type]  # the table's names are the literal's
        injection=parts.injection,
        gpus=gpus,
        image=parts.image,
        container=parts.container,
        companion=parts.companion,
        companion_image=job.image.base if parts.companion else None,
        python=parts.python,
        venv=parts.venv,
        agent=with_hosts(agent, job),
        choices=(*selection.choices, *parts.choices, launcher_choice),
        warnings=parts.warnings,
        git_commit=git_commit(job.project),
        driver_version=site.host.inventory.driver_version,
    )


def _evidence_dir(parts: _Parts, site: Site, *, interactive: bool) -> str | None:
    """A container's log carries the evidence. Not where a terminal is in its place, or no target beside the agent."""
    if parts.container is None:
        return str(site.run.folder)
    return CONTAINER_RUN if interactive or parts.companion is not None else None


@dataclass(frozen=True)
class _Parts:
    """What differs between a container and a local process."""

    places: Places
    argv: tuple[str, ...]
    script_index: int | None
    injection: Injection
    env: dict[str, str] = field(default_factory=dict)
    image: ImagePlan | None = None
    container: ContainerPlan | None = None
    companion: ContainerPlan | None = None
    python: str | None = None
    venv: VenvPlan | None = None
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()


def _in_container(job: Job, site: Site, script: ScriptFacts, gpus: tuple[Gpu, ...]) -> _Parts:
    image, image_choices = _image(job, site, script, gpus)
    way_in = injection.choose(
        site.engine,
        gpus,
        site.host.driver,
        capabilities=GpuRequest.parse(job.gpus).capabilities,
    )
    resumed = resume_mount(site.resume_from) if site.resume_from else None
    places = container_places(job, resumes=resumed is not None)
    argv, script_index = target_argv(job.target, image, image.python or "python3", places)
    made = container.plan_container(
        job,
        run_id=site.run.id,
        record=site.run.folder,
        place=site.run.place,
        state=site.host.state_folder,
        image=image,
        engine=site.engine,
        injection=way_in,
        agent_archive=site.agent_archive,
        secrets_folder=site.secrets_folder,
        resumed=resumed,
        uid=site.host.uid,
        gid=site.host.gid,
        user_name=site.host.user_name,
        cache_folder=site.host.cache_folder / "projects" / project_key(job.project),
        environ=site.host.environ,
        gpu_count=len(gpus),
        host_memory_bytes=site.host.memory_bytes,
        host_pids=site.host.most_pids,
        command=(image.python, *AGENT_PYTHON_FLAGS, CONTAINER_AGENT, CONTAINER_PLAN) if image.python else argv,
    )
    made_container, recipe_env = made.container, dict[str, str]()
    warnings = (*way_in.warnings, *made.warnings)
    if image.python is None:
        without_agent.refuse_what_needs_the_agent(job)
        env = {**made_container.env, **places.env(), "SEATRIAL_RUN_ID": site.run.id}
        made_container = made_container.model_copy(update={"env": env})
        warnings += (without_agent.WARNING,)
    if job.target.kind == "recipe" and not image.build:
        made_container, recipe_env = _with_recipes(made, image, site)
    return _Parts(
        places=places,
        argv=tuple(argv),
        script_index=script_index,
        injection=way_in.strategy,
        env={**made.target_env, **recipe_env},
        image=image,
        container=made_container,
        companion=made.companion,
        choices=(
            *image_choices,
            Choice(what="GPU injection", value=way_in.strategy, reason=way_in.reason),
            *made.choices,
        ),
        warnings=warnings,
    )


def _with_recipes(made: container.ContainerParts, image: ImagePlan, site: Site) -> tuple[ContainerPlan, dict[str, str]]:
    """A ready image has no recipes inside: they are mounted as our own wheel, which Python imports as it is."""
    wheel = Mount(source=write_wheel(site.host.state_folder / "recipes"), target=CONTAINER_RECIPES, read_only=True)
    own = made.target_env.get("PYTHONPATH", image.env.get("PYTHONPATH", ""))
    path = ":".join(filter(None, [CONTAINER_RECIPES, own]))
    return made.container.model_copy(update={"mounts": (*made.container.mounts, wheel)}), {"PYTHONPATH": path}


def _image(job: Job, site: Site, script: ScriptFacts, gpus: tuple[Gpu, ...]) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """The image to build, or the ready one with what it says of itself filled in."""
    image, choices = plan_image(
        job,
        imports=frozenset(script.imports),
        compiles=script.compiler_evidence is not None,
        cpu_only=not gpus,
        machine=site.host.machine(gpus),
        multi_gpu=len(gpus) > 1 or script.multi_gpu_evidence is not None,
    )
    if image.build:
        return image, choices
    facts = site.backend.image(image.tag)
    if facts is None and not site.may_pull:
        unknown = Choice(what="image contents", value="unknown", reason=f"{image.tag} is not here yet; run pulls it")
        return image.model_copy(update={"python": "python3"}), (*choices, unknown)
    facts = facts or site.backend.pull(image.tag)
    inside = {
        "python": job.image.python or site.backend.find_python(image.tag),
        "entrypoint": facts.entrypoint,
        "cmd": facts.cmd,
        "env": facts.env,
    }
    return image.model_copy(update=inside), choices


def _local(job: Job, site: Site, script: ScriptFacts, gpus: tuple[Gpu, ...]) -> _Parts:
    if job.target.kind == "image":
        raise UsageError(
            "An image cannot run on the local backend", run=f"seatrial run --image {job.image.ready} --on docker"
        )
    _refuse_container_options(job)
    python = choose_python(job, script, site.host, cpu_only=not gpus)
    resume_from = checkpoints_of(site.resume_from) if site.resume_from else None
    places = local_places(job, site.run.outputs, resume_from)
    argv, script_index = target_argv(job.target, None, str(python.interpreter), places)
    from_files = {
        name: value for path in job.env_files for name, value in read_env_file(path, site.host.environ).items()
    }
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)} if gpus else {}
    return _Parts(
        places=places,
        argv=tuple(argv),
        script_index=script_index,
        env={**_without_secrets({**from_files, **job.env}, job), **python.env, **visible},
        injection="host" if gpus else "none",
        python=str(python.interpreter),
        venv=python.venv,
        choices=python.choices,
    )


def _without_secrets(env: Mapping[str, str], job: Job) -> dict[str, str]:
    """A secret's value reaches the target through its handover alone, also when --env names it: the plan is a file."""
    return {name: value for name, value in env.items() if name not in job.secrets}


def _refuse_container_options(job: Job) -> None:
    """A local process has no container to apply these to: an option that does nothing is refused."""
    container_only = {
        "--mount": job.mounts,
        "--publish": job.publish,
        "--network": job.network,
        "--device": job.devices,
        "--ulimit": job.ulimits,
        "--cpus": job.cpus,
        "--memory": job.memory_bytes,
        "--shm-size": job.shm_bytes,
        "--writable": job.writable,
    }
    given = [flag for flag, value in container_only.items() if value]
    if given:
        raise UsageError(
            f"{', '.join(given)} need{'s' if len(given) == 1 else ''} a container; the backend local has none",
            run="seatrial run … --on docker",
        )


def _launcher(job: Job, script: ScriptFacts, gpu_count: int) -> tuple[Literal["torchrun", "none"], Choice]:
    if job.launcher != "auto":
        return job.launcher, Choice(what="launcher", value=job.launcher, reason=f"--launcher {job.launcher}")
    if script.torchrun_evidence and not script.one_process_evidence:
        return "torchrun", Choice(
            what="launcher",
            value=f"torchrun, {max(1, gpu_count)} rank{'s' * (gpu_count > 1)}",
            reason=f"the script joins a process group: {script.torchrun_evidence}",
        )
    if _is_training_recipe(job) and (gpu_count > 1 or job.nodes > 1):
        return "torchrun", Choice(
            what="launcher", value=f"torchrun, {gpu_count} ranks", reason="recipes use a rank a GPU"
        )
    reason = script.one_process_evidence or "no sign that the script joins a process group"
    return "none", Choice(what="launcher", value="none", reason=reason)


def _restarts(job: Job, launcher: Literal["torchrun", "none"]) -> int:
    """torchrun's: recipes go on from their checkpoints, other scripts would begin anew unless they say otherwise."""
    if launcher != "torchrun":
        return 0
    return job.restarts if job.restarts is not None else RECIPE_RESTARTS if _is_training_recipe(job) else 0


def _gpu_mode(job: Job, gpus: tuple[Gpu, ...]) -> Literal["required", "none", "auto-cpu"]:
    if gpus:
        return "required"
    return "none" if GpuRequest.parse(job.gpus).kind == "none" else "auto-cpu"


def _check(job: Job, script: ScriptFacts, gpus: tuple[Gpu, ...]) -> Literal["torch", "driver", "none"]:
    if not gpus:
        return "none"
    return "torch" if script.framework == "torch" or job.target.kind == "recipe" else "driver"


def _gpu_memory_limit(job: Job, script: ScriptFacts, gpus: tuple[Gpu, ...]) -> int | None:
    if job.gpu_memory_bytes is not None and GpuRequest.parse(job.gpus).kind == "none":
        raise UsageError(
            "--gpu-memory limits nothing on a run without GPUs (--gpus none)", run="seatrial run … without --gpu-memory"
        )
    if job.gpu_memory_bytes is not None and not container_limits.gpu_memory_enforceable(script.framework):
        raise UsageError(
            f"--gpu-memory cannot be enforced on this target: {script.framework or 'its source'} offers no limit",
            cause="Only torch and TensorFlow can be held to one; CUDA itself has none",
            run="seatrial run … without --gpu-memory",
        )
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes, default=None)
    if job.gpu_memory_bytes is not None and smallest is not None and job.gpu_memory_bytes > smallest.memory_bytes:
        has = format_bytes(smallest.memory_bytes)
        raise UsageError(
            f"--gpu-memory {format_bytes(job.gpu_memory_bytes)}: GPU {smallest.index} ({smallest.name}) has {has}",
            run="seatrial run … without --gpu-memory, which then may take all of it",
        )
    return job.gpu_memory_bytes
