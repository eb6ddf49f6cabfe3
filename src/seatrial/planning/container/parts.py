"""Plan a container of this machine: image, GPUs, mounts, limits; or what is added to one that Compose makes.

Of the latter, the plan's ContainerPlan holds only what the override adds (compose/override.py).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path

from seatrial.backends.base import ImageFacts
from seatrial.backends.containers import injection
from seatrial.backends.containers.images import ImageStore
from seatrial.backends.containers.mounts import shielded
from seatrial.errors import DiskError, UsageError
from seatrial.images.dockerfile.context import write_wheel
from seatrial.images.plan import plan_image, ready_image
from seatrial.images.recipes import recipe
from seatrial.images.resolve.uv import LIMIT_S, PATIENT_S, UvResolver
from seatrial.job import in_container
from seatrial.job.keys import typed_keys
from seatrial.job.model import ImageOptions, Job
from seatrial.job.plan import Choice, ContainerPlan, Gpu, ImagePlan, Mount
from seatrial.job.script import ScriptFacts
from seatrial.planning.container import outside, plan
from seatrial.planning.container.env import service_env, without_login, without_models, without_variables
from seatrial.planning.container.env import shielded as unsteered
from seatrial.planning.container.limits import ray_env
from seatrial.planning.launcher import meeting
from seatrial.planning.process import gpu_count, gpu_plan, selected
from seatrial.planning.site import Parts, Places, Site, container_places, target_argv
from seatrial.stack.machine import parse_target
from seatrial.system.files import make_folder, write_atomically


def container_parts(job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Plan a container of this machine. Raises SeatrialError: an image, mount or option that is invalid here."""
    if job.hosts and job.network is None:
        job = job.changed(network="host")  # ranks open ports of their choice, which no --publish could name
    gpus = selected(site)
    image, image_choices = planned_image(job, site, script, gpus)
    job, models_choices = outside.with_models(job, script)
    job, path_choices, path_warnings = outside.with_host_paths(job, script, build=image.build)
    outside.refuse_lost_writes(job, script, build=image.build)
    injected = way_in(job, site)
    places = container_places(job, resumes=site.resumed is not None)
    if image.python is None and job.target.kind != "image":
        cause = "Searched its PATH and the standard locations; set [image] python to use another"
        run = f"seatrial run --image {job.image.ready} -- PROGRAM"
        raise UsageError(f"{job.image.ready} has no Python >= 3.8 to run {job.target.value}", cause=cause, run=run)
    # A ready image has no recipes inside: they are mounted as a wheel, which Python imports as it is.
    mounted = job.target.kind == "recipe" and not image.build
    wheels = [write_wheel(site.host.state_folder / "recipes")] if mounted else []
    recipes = [Mount(source=each, target=in_container.CONTAINER_RECIPES, read_only=True) for each in wheels]
    by_writes = outside.made_by_writes(job, script)
    made = plan.plan_container(job, site, image, injected, made_if_missing=by_writes, more_mounts=recipes)
    all_env = {**image.env, **made.container.env, **made.target_env}
    machine = parse_target(job.image.target) if job.image.target else site.host.machine(gpus)
    named: tuple[str, ...] = ()
    if ready := job.image.ready:
        from seatrial.images.lint.check import image_warnings  # an image that is built follows the rules

        pulled = any((one.what, one.value) == in_container.IMAGE_UNKNOWN for one in image_choices)
        named = (*image_warnings(ready, machine if gpu_count(site) else None, pulled=pulled),)
        set_ones = job.image.model_fields_set - {"ready", "python", "target"}
        if idle := [key for key, name in typed_keys(ImageOptions).items() if name in set_ones]:
            named += (f"{ready} is used as it is: {', '.join(idle)} of [image] has no effect",)
    warnings = (*injected.warnings, *named, *made.warnings, *path_warnings, *outside.warn_of_outside(job, script))
    warnings += (*outside.warn_of_lost_writes(job, script),)
    warnings += (*without_models(script, all_env, made.container.mounts, site.host),)
    warnings += (*without_variables(job, script, all_env, site.host),)
    tracker_env, tracker_choices = without_login(job, script, all_env, site.host, image.context_texts)
    env = {**tracker_env, **made.target_env}
    if wheels:
        own = made.target_env.get("PYTHONPATH", image.env.get("PYTHONPATH", ""))
        env["PYTHONPATH"] = ":".join(filter(None, [in_container.CONTAINER_RECIPES, own]))
    way = Choice(what="GPU injection", value=injected.strategy, reason=injected.reason)
    env |= ray_env(script.ray_evidence, made.container.shm_bytes, {**image.env, **made.container.env})
    return Parts(
        places,
        *target_argv(job.target, image, image.python or "python3", places),
        gpus=gpu_plan(job, site, injected.strategy),
        keeps_checkpoints=job.target.kind == "recipe" and recipe(job.target.value).trains,
        unkept=plan.unkept_folders(made.container),
        meeting=meeting(job),
        env=env,
        image=image,
        container=made.container,
        choices=(*image_choices, way, *made.choices, *models_choices, *path_choices, *tracker_choices),
        warnings=warnings,
    )


def way_in(job: Job, site: Site) -> injection.InjectionPlan:
    capabilities = job.gpus.capabilities
    if site.another is not None:
        return injection.on_another_machine(site.engine, site.another.flag, site.another.devices, capabilities)
    if not (gpus := selected(site)):
        return injection.without_gpus()
    return injection.choose(site.engine, gpus, site.host.driver, capabilities=capabilities)


def planned_image(
    job: Job, site: Site, script: ScriptFacts, gpus: tuple[Gpu, ...]
) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """Return the image to build, or the ready one with its own facts, if it is here."""
    if job.image.ready is not None:
        return _ready_image(job.image.ready, job, site)
    limit_s = PATIENT_S if site.launches else LIMIT_S
    multi_gpu = gpu_count(site) > 1 or script.multi_gpu_evidence is not None
    resolver = UvResolver(site.host.cache_folder / "packages", site.host, limit_s=limit_s)
    return plan_image(
        job, script=script, cpu_only=not gpus, machine=site.host.machine(gpus), multi_gpu=multi_gpu, resolver=resolver
    )


def _ready_image(tag: str, job: Job, site: Site) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """Return a ready image with the facts that its store has of it, if it is here."""
    store = site.backend.images
    assert store is not None, "a place of containers has an image store"
    if (facts := store.image(tag)) is None:
        what, value = in_container.IMAGE_UNKNOWN
        unknown = Choice(what=what, value=value, reason=f"{tag} is not here yet; run pulls it")
        image, choice = ready_image(tag, python="python3")
        return image, (choice, unknown)
    python = job.image.python or _python_inside(tag, facts, store, site.host.cache_folder / "pythons")
    image, choice = ready_image(tag, python=python, entrypoint=facts.entrypoint, cmd=facts.cmd, env=facts.env)
    return image, (choice,)


def _python_inside(tag: str, facts: ImageFacts, store: ImageStore, cache: Path) -> str | None:
    """Find an image's Python once, None without one: an ID's files never change, and looking starts a container."""
    kept = cache / facts.id.partition(":")[2]
    try:
        return kept.read_text() or None
    except OSError:
        found = store.find_python(tag)
    with contextlib.suppress(DiskError):  # a cache that cannot be written is done without
        make_folder(cache)
        write_atomically(kept, (found or "").encode())
    return found


def service_parts(job: Job, site: Site, script: ScriptFacts) -> Parts:
    """Plan what is added to a service's container. Raises UsageError: the service has nothing to run."""
    service = site.service
    assert service is not None
    if not service.argv:
        problem = f"The service {service.name} has no command, and neither has its image"
        raise UsageError(problem, run="docker compose config")
    image, image_choices = planned_image(job, site, script, selected(site))
    injected = way_in(job, site)
    places = Places(project=service.workdir, run=in_container.CONTAINER_RUN, data=None, models=None, resume=None)
    env, target_env = service_env(service, image, injected)
    mounts, masks = shielded(service.mounts, plan.hidden_folders(job, site))
    container = ContainerPlan(
        name=f"seatrial-{site.run_id}",
        hostname=None,
        command=plan.agent_command(site, image),
        user=None,
        groups=injected.groups,
        workdir=service.workdir,
        env=env,
        mounts=(*mounts, *injected.mounts, *plan.agent_mounts(site)),
        tmpfs=masks,
        devices=injected.devices,
        gpus_flag=injected.gpus_flag,
        runtime=injected.runtime,
        read_only_root=service.read_only_root,
        labels=plan.container_labels(job, site),
        stop_timeout_s=math.ceil(job.grace_s) + in_container.AGENT_GRACE_S,
    )
    return Parts(
        places=places,
        argv=service.argv,
        script=None,
        gpus=gpu_plan(job, site, injected.strategy),
        env=target_env,
        image=image,
        container=container,
        choices=(*image_choices, Choice(what="GPU injection", value=injected.strategy, reason=injected.reason)),
        warnings=injected.warnings,
    )


def compared(job: Job, site: Site, env: Mapping[str, str]) -> tuple[ContainerPlan, dict[str, str]]:
    """Return a service's mounts to compare, unless it is a run, and what its command gets of the image's ``env``."""
    service = site.service
    assert service is not None
    loaders = {name: value for name, value in {**env, **service.environment}.items() if not name.startswith("PYTHON")}
    safe, back = unsteered(service.environment, loaders, service.filled)
    mounts, masks = shielded(service.mounts, plan.hidden_folders(job, site))
    container = ContainerPlan(
        name=service.name,
        hostname=None,
        command=(*in_container.PYTHON_COMMAND, *in_container.AGENT_ARGV, *service.argv),
        user=None,
        workdir=service.workdir,
        env=safe,
        mounts=(*mounts, *(mount for mount in plan.agent_mounts(site) if mount.read_only)),
        tmpfs=masks,
    )
    return container, back
