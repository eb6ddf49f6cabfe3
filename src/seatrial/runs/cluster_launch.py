"""A run on a cluster up to its start: survey, image, plan; then the image built and pushed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.backends import table
from seatrial.backends.base import ImageFacts
from seatrial.backends.kubernetes.backend import RECIPES
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.survey import ClusterFacts, survey
from seatrial.errors import EngineUnavailableError, ImageError, SeatrialError
from seatrial.images.plan import pip_conf, plan_image
from seatrial.images.wheel import wheel_bytes
from seatrial.job.gpus import GpuRequest
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ImagePlan, Plan
from seatrial.job.script import ScriptFacts
from seatrial.runs import cluster_memory
from seatrial.runs.cluster_machine import cluster_machine
from seatrial.runs.cluster_planning import make_cluster_plan
from seatrial.runs.facts import HostFacts

if TYPE_CHECKING:
    from seatrial.images.build import Engine

#: Engines that build for a cluster, the first that answers.
BUILDERS: tuple[Engine, ...] = ("docker", "podman")


def plan_for_cluster(job: Job, run_id: str, script: ScriptFacts, host: HostFacts, *, offline: bool = False) -> Plan:
    """The plan of a run on Kubernetes.

    Args:
        offline: nothing will be submitted: what is remembered of the cluster will do, and with an explicit kind none
            need answer.

    Raises SeatrialError: no cluster, or it cannot do what is asked.
    """
    facts, seen = _survey(job, host, offline=offline)
    request = GpuRequest.parse(job.gpus)
    cpu_only = request.kind == "none" or (
        request.kind == "auto" and not any(node.allocatable for node in facts.nodes or ())
    )
    image, image_choices = plan_image(
        job,
        imports=frozenset(script.imports),
        compiles=script.compiler_evidence is not None,
        cpu_only=cpu_only,
        machine=cluster_machine(facts, job.kubernetes.node_selector),
        multi_gpu=request.kind == "all" or (request.count or 0) > 1 or script.multi_gpu_evidence is not None,
    )
    if not image.build:
        image = _ready(job, image, host.environ)
    plan = make_cluster_plan(job, run_id, script, image, facts, host.environ)
    return plan.model_copy(update={"choices": (seen, *plan.choices, *image_choices)})


def make_image_ready(plan: Plan, run_folder: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Build what is not there, push it where a registry is named, and lay the recipes' wheel beside the plan."""
    from seatrial.images.build import build, push  # much to import, which a plan needs nothing of

    assert plan.image is not None and plan.cluster is not None, "a plan for k8s has both"
    if plan.cluster.recipes:
        (run_folder / RECIPES).write_bytes(wheel_bytes())
    if not plan.image.build:
        return
    engine = _builder(environ)
    call = table.client_call(engine, environ)
    build(plan.image, engine=engine, progress=say, pip_conf=pip_conf(plan.job.image), client_call=call)
    if plan.job.kubernetes.registry:
        push(plan.image.tag, progress=say, client_call=call)


def _survey(job: Job, host: HostFacts, *, offline: bool) -> tuple[ClusterFacts, Choice]:
    options = job.kubernetes
    if offline and (kept := cluster_memory.recall(options, host.environ, host.cache_folder)) is not None:
        facts, age_s = kept
        return facts, _seen(facts, f"as it was {age_s:.0f} s ago; run asks anew")
    try:
        facts = survey(Cluster(host.environ, options.context, options.namespace), options.gpu_resource)
    except EngineUnavailableError as error:
        if not offline or options.kind == "auto":
            raise
        unread = f"No cluster answers ({error.message}): rendered for Kubernetes 1.26 and later"
        facts = ClusterFacts(namespace=options.namespace or "default", context=options.context, unread=(unread,))
        return facts, _seen(facts, "none answers")
    cluster_memory.remember(facts, options, host.environ, host.cache_folder)
    return facts, _seen(facts, "asked just now")


def _seen(facts: ClusterFacts, reason: str) -> Choice:
    return Choice(what="cluster", value=f"Kubernetes {facts.git_version}, namespace {facts.namespace}", reason=reason)


def _ready(job: Job, image: ImagePlan, environ: Mapping[str, str]) -> ImagePlan:
    """What a ready image says of itself, where an engine here has it. An image's own command must be known: the agent
    starts it.

    Raises ImageError when it is not.
    """
    facts = _facts_here(image.tag, environ)
    if facts is None and job.target.kind == "image" and not job.target.args:
        raise ImageError(
            f"What {image.tag} runs is not known here: no engine of this machine has it",
            cause="the agent starts the image's command, so it must be told",
            run=f"seatrial run --image {image.tag} … -- COMMAND   # or: docker pull {image.tag}",
        )
    known = {"entrypoint": facts.entrypoint, "cmd": facts.cmd, "env": facts.env} if facts else {}
    return image.model_copy(update={"python": job.image.python or "python3", **known})


def _facts_here(tag: str, environ: Mapping[str, str]) -> ImageFacts | None:
    from python_on_whales.exceptions import DockerException

    for name in BUILDERS:
        try:
            if (facts := table.backend(name, environ).image(tag)) is not None:
                return facts
        except (SeatrialError, DockerException):
            continue
    return None


def _builder(environ: Mapping[str, str]) -> Engine:
    reasons = []
    for name in BUILDERS:
        facts = table.backend(name, environ).facts()
        if facts.available:
            return name
        reasons.append(facts.reason)
    raise EngineUnavailableError(
        "The image must be built, and no engine of this machine can",
        cause="; ".join(reasons),
        run="seatrial run --image REGISTRY/READY:TAG … --on k8s",
    )
