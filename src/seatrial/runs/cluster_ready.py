"""A cluster run's image, made ready before the start: built and pushed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import ImageStore
from seatrial.backends.kubernetes.manifests import RECIPES
from seatrial.errors import EngineUnavailableError
from seatrial.images.dockerfile.context import wheel_bytes
from seatrial.images.sources import pip_conf
from seatrial.job.plan import Plan
from seatrial.system.host import Host


def make_image_ready(plan: Plan, run_folder: Path, host: Host, say: Callable[[str], None]) -> None:
    """Build what is not there, push it where a registry is named, and lay the recipes' wheel beside the plan."""
    from seatrial.images.build.build import build  # 10 ms that a plan need not wait for

    assert plan.image is not None and plan.cluster is not None, "a plan for k8s has both"
    if plan.cluster.recipes:
        (run_folder / RECIPES).write_bytes(wheel_bytes())
    if not plan.image.build:
        return
    store = _builder(host)
    say(build(plan.image, store=store, progress=say, pip_conf=pip_conf(plan.job.image)).words(None))
    if plan.job.kubernetes.registry:
        say(f"pushing {plan.image.tag}")
        store.push(plan.image.tag)


def _builder(host: Host) -> ImageStore:
    """Of the first of this machine's engines that answers. Raises EngineUnavailableError with each one's reason."""
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
