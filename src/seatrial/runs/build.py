"""Build what a planned run needs: image or virtual environment, folders, secrets; and an image without a run."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.backends import table
from seatrial.backends.base import Backend, Echo
from seatrial.backends.containers.images import ImageStore
from seatrial.backends.containers.mounts import make_host_files
from seatrial.backends.local import ensure_venv
from seatrial.errors import EngineError, EngineUnavailableError, ImageError, UsageError
from seatrial.findings.catalogue import IN_RUN
from seatrial.findings.match import first_in
from seatrial.images.build.build import BuildResult, build
from seatrial.images.build.checks import without_cuda
from seatrial.images.build.failure import NAME_THE_PACKAGE, guess_among
from seatrial.images.build.size import image_bytes, image_bytes_of
from seatrial.images.build.verify import Verification, measure_contents, verify_image
from seatrial.images.dockerfile.context import origin_labels, wheel_bytes
from seatrial.images.requirements.project import LOCK
from seatrial.images.sources import pip_conf
from seatrial.job.plan import Plan, VenvPlan
from seatrial.job.script import source_facts
from seatrial.planning import secrets
from seatrial.planning.container.env import shielded
from seatrial.planning.host import read_host
from seatrial.runs.run import Run
from seatrial.stack.machine import TargetMachine, parse_target
from seatrial.system import command, nofollow
from seatrial.system.files import make_folder, require_writable
from seatrial.system.host import Host


def make_ready(plan: Plan, backend: Backend, run: Run, host: Host, echo: Echo) -> Plan:
    """Make image or environment, output folders and secrets (``host`` has new ones); return what is to be started."""
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
    """Build a cluster run's image, push it if a registry is named, and put the recipes' wheel into the record."""
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
    message = "The image must be built, but this machine has no engine to build it"
    run = "seatrial run --image REGISTRY/READY:TAG … --on k8s"
    raise EngineUnavailableError(message, cause="; ".join(reasons), run=run)


def _make_venv(plan: Plan, venv: VenvPlan, echo: Echo) -> None:
    """Make the virtual environment unless it exists. A failure over a guessed package is reported as one."""
    progress = echo if plan.gpus_asked else without_cuda(echo, venv.requirements)
    try:
        ensure_venv(venv.directory, venv.requirements, venv.base, progress)
    except EngineError as error:
        if guess := guess_among(plan.warnings, error.message.rpartition(" found for ")[2]):
            raise EngineError(error.message, cause=guess, run=NAME_THE_PACKAGE) from error
        raise


@dataclass(frozen=True)
class Built:
    """A finished image; sizes are of its files, None if they could not be counted.

    ``base_bytes``: None, too, where the engine has no base image of that name, or it has no Python.
    ``compressed_bytes``: of the layers, as a registry would hold them. It and ``contents`` (of measure_contents) are
    there if requested.
    """

    plan: Plan
    result: BuildResult
    verification: Verification
    size_bytes: int | None
    base_bytes: int | None
    contents: dict[str, Any] = field(default_factory=dict)
    compressed_bytes: int | None = None


def build_image(plan: Plan, host: Host, echo: Echo, *, explain: bool = False, lock: bool = False) -> Built:
    """Build a plan's image and verify it; with ``explain``, measure its parts; with ``lock``, write the versions down.

    Raises DiskError if it does not fit on the engine's disk, UsageError without an image to build, ImageError if it
    does not build, differs from the resolved packages, or is over the budget.
    """
    image, job = plan.image, plan.job
    store = table.backend(plan.backend, host).images
    if image is None or store is None or not image.build or plan.container is None:
        what, run = f"the backend {plan.backend} has no image", "seatrial build … --on docker"
        if image is not None:
            what, run = f"{image.tag} is used as is", f"seatrial doctor --image {image.tag}"
        raise UsageError(f"Nothing to build: {what}", run=run)
    if lock:
        require_writable(job.project / LOCK)
    result = build(image, store=store, progress=echo, pip_conf=pip_conf(job.image), labels=origin_labels(job))
    machine = read_host(host).machine(plan.gpus) if plan.gpus else None
    machine = parse_target(job.image.target) if job.image.target is not None else machine
    here = plan.container if plan.gpus else None  # this machine has the GPUs that the image is for
    verification = verify_image(image, source_facts(job).imports, store=store, machine=machine, container=here)
    if verification.wrong:
        known = first_in("\n".join(verification.wrong), IN_RUN)
        finding = known.known.finding(values=known.values) if known else None
        cause = "; ".join((*verification.wrong[1:], *((finding.cause or "",) if finding else ()))) or None
        fix = (finding.fix if finding else None) or "seatrial plan …   # what was resolved, and why"
        raise ImageError(f"{image.tag} was built, but {verification.wrong[0]}", cause=cause, run=fix)
    base = store.image(image.base or "")  # BuildKit keeps a pulled base to itself
    size_bytes = image_bytes_of(plan, store, host)
    base_bytes = image_bytes(store, base, "python3", host) if base is not None else None
    contents = measure_contents(image, store=store, machine=machine) if explain else {}
    compressed_bytes = _compressed(image.tag, store) if explain or job.image.max_compressed_bytes else None
    built = Built(plan, result, verification, size_bytes, base_bytes, contents, compressed_bytes)
    if lock:
        _write_lock(built, store)
    _check_budget(built, store, machine)
    return built


def _compressed(tag: str, store: ImageStore) -> int:
    """Compute the bytes of the image's layers, gzipped at the level that Docker pushes with (6)."""
    packer, size = zlib.compressobj(6, zlib.DEFLATED, 31), 0
    for chunk in store.save(tag):
        size += len(packer.compress(chunk))
    return size + len(packer.flush())


def _write_lock(built: Built, store: ImageStore) -> Path:
    """Write every package of the image at its version; the next plan reads them as constraints."""
    image, project = built.plan.image, built.plan.job.project
    assert image is not None
    ended = store.run_once(image.tag, [image.python or "python3", "-m", "pip", "freeze"], timeout_s=120)
    if ended.exit_code != 0:
        raise command.failed(ended)
    lines = [
        line.partition("+")[0] for line in ended.stdout.splitlines() if "==" in line and not line.startswith("seatrial")
    ]
    head = f"# Created by `seatrial build --lock` for Python {built.verification.python}; delete it to resolve again."
    return nofollow.write_inside(project, LOCK, data="\n".join([head, *sorted(lines), ""]).encode())


def _check_budget(built: Built, store: ImageStore, machine: TargetMachine | None) -> None:
    """Check the image's sizes against their limits. Raises ImageError with the three largest reasons."""
    options = built.plan.job.image
    assert built.plan.image is not None
    over = None
    for size, limit, unit, key in (
        (built.size_bytes, options.max_size_bytes, "GB", "max_size"),
        (built.compressed_bytes, options.max_compressed_bytes, "GB compressed", "max_compressed"),
    ):
        if size is not None and limit is not None and size > limit:
            over = f"{size / 1e9:.2f} {unit}, and image.{key} is {limit / 1e9:.2f} GB"
    if over is None:
        return
    contents = built.contents or measure_contents(built.plan.image, store=store, machine=machine)
    largest = sorted(contents["packages"].items(), key=lambda row: -row[1])[:3]
    base = [f"the base image {built.base_bytes / 1e6:.0f} MB"] if built.base_bytes else []
    reasons = [*(f"{name} {bytes_ / 1e6:.0f} MB" for name, bytes_ in largest), *base]
    message = f"{built.plan.image.tag} is too large: {over}"
    cause = f"the largest parts: {', '.join(reasons)}"
    raise ImageError(message, cause=cause, run="seatrial build … --explain   # what slimming would save")
