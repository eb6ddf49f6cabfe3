"""Everything of a run that a cluster is given, with the files that are handed over."""

from __future__ import annotations

from pathlib import Path

from seatrial.backends.kubernetes.manifests.names import Manifest
from seatrial.backends.kubernetes.manifests.render import render
from seatrial.job.plan import Plan

#: File of the run's folder that is handed over with the agent: our wheel, for recipes in a ready image.
RECIPES = "recipes.whl"


def cluster_manifests(plan: Plan, agent: Path, recipes: Path | None = None) -> list[Manifest]:
    """Everything that is created but the values of secrets.

    Args:
        agent: its archive.
        recipes: the recipes' wheel, which a plan may hand over, if it is there.
    """
    binaries = {"agent.pyz": agent.read_bytes()}
    if plan.cluster is not None and plan.cluster.recipes and recipes is not None and recipes.exists():
        binaries[RECIPES] = recipes.read_bytes()
    return render(plan, binaries)
