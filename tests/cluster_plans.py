"""Plans for clusters, made from jobs as the command line would."""

from __future__ import annotations

from pathlib import Path

from fakes import load_job
from planning_sites import MODERN, READY, RUN_ID, a_site
from seatrial.backends.kubernetes.devices import Claimable, Offer
from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.job.plan import Plan
from seatrial.job.script import script_facts
from seatrial.planning.plan import make_plan

__all__ = ["CLAIMS", "JOBSET", "KUBEFLOW", "MODERN", "OLD", "RUN_ID", "a_cluster_plan"]

DDP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
ONE = "print('one process')\n"

OLD = ClusterFacts(version=(1, 20), git_version="v1.20.2", nodes=(Node("gpu-1", 8, 8, ready=True),))
KUBEFLOW = ClusterFacts(
    version=(1, 31),
    git_version="v1.31.0",
    operators=("pytorchjob", "trainjob", "jobset"),
    nodes=(Node("gpu-1", 8, 8, ready=True),),
)
#: A cluster with JobSet and no operator of Kubeflow's.
JOBSET = ClusterFacts(
    version=(1, 33), git_version="v1.33.4", operators=("jobset",), nodes=(Node("gpu-1", 8, 8, ready=True),)
)
#: A cluster without the device plugin: its GPUs are claimed.
CLAIMS = ClusterFacts(
    version=(1, 34),
    git_version="v1.34.1",
    nodes=(Node("cpu-1", 0, 0, ready=True), Node("gpu-1", 0, 0, ready=True)),
    claimable=Claimable(
        "v1",
        ("gpu.nvidia.com", "mig.nvidia.com"),
        {"gpu-1": Offer({"gpu": 4, "1g.18gb": 7}, {"product": "NVIDIA H200", "capability": "9.0.0"})},
    ),
)


def a_cluster_plan(project: Path, facts: ClusterFacts = MODERN, *, script: str = ONE, **flags: object) -> Plan:
    """The plan of ``train.py`` in ``project`` with these flags, in a ready image."""
    (project / "train.py").write_text(script)
    cluster = {"uid": 1234, "context": "test", "namespace": "default", **flags.pop("kubernetes", {})}  # type: ignore[dict-item]
    keys = {"target": "train.py", "on": "k8s", "image": {"ready": READY}, **flags, "kubernetes": cluster}
    job = load_job(project, keys, cwd=project)
    site = a_site("k8s", project.parent, project, cluster=facts)
    return make_plan(job, site, script_facts(job.target, job.project))
