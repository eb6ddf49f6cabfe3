"""Plans for clusters, made from jobs as the command line would."""

from __future__ import annotations

from pathlib import Path

from seatrial.backends.kubernetes.survey import ClusterFacts, Node
from seatrial.job.loading import load_job
from seatrial.job.plan import ImagePlan, Plan
from seatrial.job.script import script_facts
from seatrial.runs.cluster_planning import make_cluster_plan

RUN_ID = "20261121-000000-test"

DDP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
ONE = "print('one process')\n"

MODERN = ClusterFacts(version=(1, 31), git_version="v1.31.0", nodes=(Node("gpu-1", 8, 8, ready=True),))
OLD = ClusterFacts(version=(1, 20), git_version="v1.20.2", nodes=(Node("gpu-1", 8, 8, ready=True),))
KUBEFLOW = ClusterFacts(
    version=(1, 31),
    git_version="v1.31.0",
    operators=("pytorchjob", "trainjob"),
    nodes=(Node("gpu-1", 8, 8, ready=True),),
)


def a_cluster_plan(project: Path, facts: ClusterFacts = MODERN, *, script: str = ONE, **flags: object) -> Plan:
    """The plan of ``train.py`` in ``project`` with these flags, in a ready image."""
    (project / "train.py").write_text(script)
    cluster = {"uid": 1234, "context": "test", "namespace": "default", **flags.pop("kubernetes", {})}  # type: ignore[dict-item]
    job = load_job(project, {"target": "train.py", "on": "k8s", **flags, "kubernetes": cluster}, cwd=project)
    image = ImagePlan(tag="registry.test/train:1", build=False, python="python3")
    return make_cluster_plan(job, RUN_ID, script_facts(job.target, job.project), image, facts, {})
