"""A job's image on the nodes before the job runs: what ``seatrial k8s prepull`` does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from seatrial.backends.kubernetes import prepull as pods
from seatrial.backends.kubernetes.client import Cluster
from seatrial.backends.kubernetes.manifests.yaml_text import as_yaml
from seatrial.backends.kubernetes.survey import survey
from seatrial.errors import CapacityError, EngineError
from seatrial.job.model import Job
from seatrial.planning.cluster.claims import gpu_way, pod_resource
from seatrial.runs import launch
from seatrial.runs.cluster_ready import make_image_ready


def prepull(
    job: Job, environ: Mapping[str, str], say: Callable[[str], None], *, timeout_s: float, dry_run: bool = False
) -> str:
    """Build and push the image where that is still to do, and pull it onto every node that the job's pods may use.

    Returns the pods as YAML with ``dry_run``, which does nothing; else "".

    Raises:
        EngineError: nodes may not be listed, or some have not pulled it. CapacityError: there is no such node.
    """
    plan = launch.plan_only(job, environ)
    assert plan.cluster is not None, "a job for k8s has a cluster"
    cluster = Cluster(environ, plan.cluster.context, plan.cluster.namespace)
    nodes = gpu_way(job, survey(cluster, pod_resource(job), job.kubernetes.runtime)).facts.nodes
    if nodes is None:
        raise EngineError(
            "Which nodes there are is unknown, so an image cannot be pulled onto them",
            cause="listing nodes, or what they offer to claims, needs a ClusterRole",
            run="kubectl auth can-i list nodes",
        )
    chosen = pods.nodes_for(nodes, plan.cluster)
    if not chosen:
        raise CapacityError(
            "No node of the cluster is one that the pods may use now",
            cause=f"of {len(nodes)} nodes none is ready and has the labels, GPUs and tolerated taints asked for",
            run="kubectl get nodes --show-labels",
        )
    if dry_run:
        say(f"{plan.cluster.image} would be pulled onto {', '.join(chosen)}")
        return as_yaml(pods.pull_pods(plan.cluster, chosen, timeout_s))
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        make_image_ready(plan, Path(folder), environ, say)
    say(f"pulling {plan.cluster.image} onto {', '.join(chosen)}")
    pods.prepull(cluster, plan.cluster, chosen, say, timeout_s)
    return ""
