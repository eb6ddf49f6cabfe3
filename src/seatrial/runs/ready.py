"""Make all that a planned run needs before its start: image or virtual environment, folders, secrets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import Backend, Echo
from seatrial.backends.containers.images import ImageStore
from seatrial.backends.containers.mounts import make_host_files
from seatrial.backends.local import ensure_venv
from seatrial.errors import EngineError, EngineUnavailableError
from seatrial.images.build.build import build
from seatrial.images.build.checks import without_cuda
from seatrial.images.build.failure import NAME_THE_PACKAGE, guess_among
from seatrial.images.build.size import image_bytes_of
from seatrial.images.dockerfile.context import origin_labels, wheel_bytes
from seatrial.images.sources import pip_conf
from seatrial.job.plan import Plan, VenvPlan
from seatrial.planning import secrets
from seatrial.planning.container.env import shielded
from seatrial.runs.run import Run
from seatrial.system.files import make_folder
from seatrial.system.host import Host


def make_ready(plan: Plan, backend: Backend, run: Run, host: Host, echo: Echo) -> Plan:
    """Make all that a start needs: image or virtual environment, output folders, secrets. Return what is to be started.

    Args:
        host: with what became a secret on the way.
    """
    if not plan.on_this_host:
        pushed = make_image_ready(plan, run.folder, host, echo)
        if pushed is not plan:
            run.save_plan(pushed)
        return pushed
    store = backend.images
    if plan.image is not None and plan.image.build:
        assert store is not None, "a plan with an image to build is for a backend with a store"
        pip = pip_conf(plan.job.image)
        built = build(plan.image, store=store, progress=echo, pip_conf=pip, labels=origin_labels(plan.job))
        echo(built.words(image_bytes_of(plan, store, host)))
        plan = _shielded(plan, built.env, run)
    elif plan.image is not None:
        image_bytes_of(plan, store, host)  # counted before the run
    if plan.venv is not None:
        _make_venv(plan, plan.venv, echo)
    if plan.agent.input is not None:
        os.mkfifo(run.input, mode=0o600)
    if plan.container is not None:
        make_host_files(plan.container, plan.job.project)
    elif plan.job.models is not None:
        make_folder(plan.job.models.source)
    secrets.write_secrets(plan.job, plan.run_id, host)
    return plan


def _shielded(plan: Plan, env: Mapping[str, str], run: Run) -> Plan:
    """Keep from PID 1 by what a base image, known only now, steers the loader: ``ENV LD_PRELOAD``."""
    assert plan.container is not None, "an image is for a container"
    safe, back = shielded(plan.container.env, env, plan.agent.filled)
    if not safe:
        return plan
    container = plan.container.changed(env={**plan.container.env, **safe})
    plan = plan.changed(container=container, agent=plan.agent._replace(env={**back, **plan.agent.env}))
    run.save_plan(plan)
    return plan


def make_image_ready(plan: Plan, run_folder: Path, host: Host, echo: Callable[[str], None]) -> Plan:
    """Build a cluster run's image, and put the recipes' wheel into the record.

    If a registry is named the image is pushed, and the returned plan's pods pull it by its digest.
    """
    from seatrial.backends.kubernetes.manifests import RECIPES

    assert plan.image is not None and plan.cluster is not None, "a plan for k8s has both"
    if plan.cluster.recipes:
        (run_folder / RECIPES).write_bytes(wheel_bytes())
    if not plan.image.build:
        return plan
    store = _builder(host)
    echo(build(plan.image, store=store, progress=echo, pip_conf=pip_conf(plan.job.image)).words(None))
    if not plan.job.kubernetes.registry:
        return plan
    echo(f"pushing {plan.image.tag}")
    return plan.changed(cluster=plan.cluster.changed(image=store.push(plan.image.tag)))


def _builder(host: Host) -> ImageStore:
    """Return the images of the first engine of this machine that answers. Raises EngineUnavailableError."""
    reasons = []
    for name in table.ENGINES:
        engine = table.engine(name, host)
        facts = engine.facts()
        if facts.available:
            return engine.images
        reasons.append(facts.reason)
    raise EngineUnavailableError(
        "The image must be built, but this machine has no engine to build it",
        cause="; ".join(reasons),
        run="seatrial run --image REGISTRY/READY:TAG … --on k8s",
    )


def _make_venv(plan: Plan, venv: VenvPlan, echo: Echo) -> None:
    """Make the virtual environment unless it exists. A failure over a guessed package is reported as one."""
    progress = echo if plan.gpus_asked else without_cuda(echo, venv.requirements)
    try:
        ensure_venv(venv.directory, venv.requirements, venv.base, progress)
    except EngineError as error:
        if guess := guess_among(plan.warnings, error.message.rpartition(" found for ")[2]):
            raise EngineError(error.message, cause=guess, run=NAME_THE_PACKAGE) from error
        raise
