"""Plans for clusters, made from jobs as the command line would."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fakes import load_job
from planning_sites import MODERN, READY, RUN_ID, a_site
from seatrial.backends.kubernetes.manifests import cluster_manifests
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.job.plan import Plan
from seatrial.job.script import script_facts
from seatrial.planning.plan import make_plan

__all__ = ["CLAIMS", "MODERN", "OLD", "RUN_ID", "a_cluster_plan", "rendered"]

DDP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
ONE = "print('one process')\n"

OLD = ClusterFacts(version=(1, 20), git_version="v1.20.2", nodes=(Node("gpu-1", 8, 8, ready=True),))
#: A cluster without the device plugin: its GPUs are claimed.
CLAIMS = ClusterFacts(
    version=(1, 34),
    git_version="v1.34.1",
    nodes=(Node("cpu-1", 0, 0, ready=True), Node("gpu-1", 0, 0, ready=True)),
)


def a_cluster_plan(project: Path, facts: ClusterFacts = MODERN, *, script: str = ONE, **flags: object) -> Plan:
    """The plan of ``train.py`` in ``project`` with these flags, in a ready image."""
    (project / "train.py").write_text(script)
    cluster = {"uid": 1234, "context": "test", "namespace": "default", **flags.pop("kubernetes", {})}  # type: ignore[dict-item]
    keys = {"target": "train.py", "on": "k8s", "image": {"ready": READY}, **flags, "kubernetes": cluster}
    job = load_job(project, keys, cwd=project)
    site = a_site("k8s", project.parent, project, cluster=facts)
    return make_plan(job, site, script_facts(job.target, job.project))


def rendered(plan: Plan, agent: bytes = b"the agent") -> list[dict[str, Any]]:
    """The manifests of a plan, with this content as the agent's archive; the workload is the last."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "agent.pyz")
        archive.write_bytes(agent)
        return cluster_manifests(plan, archive)
