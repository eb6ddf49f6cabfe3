"""Names and labels of what a run has on a cluster."""

from __future__ import annotations

from typing import Any

from seatrial.job.cluster import ClusterPlan

MANAGED_BY = "app.kubernetes.io/managed-by"
RUN_LABEL = "seatrial.run"
#: Which node of the run a pod is, where the kind lets us say so; collect falls back on the pod's name.
NODE_LABEL = "seatrial.node"
#: The LocalQueue in which Kueue holds a workload back. Source: kueue.sigs.k8s.io/docs/tasks/run/jobs.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

#: Name of the one replicated job of a JobSet, as Trainer's runtimes call theirs: part of the names of its pods.
REPLICATED_JOB = "node"

Manifest = dict[str, Any]


def config_name(cluster: ClusterPlan) -> str:
    return f"{cluster.name}-config"


def code_name(cluster: ClusterPlan) -> str:
    return f"{cluster.name}-code"


def secret_name(cluster: ClusterPlan) -> str:
    return f"{cluster.name}-secrets"


def claim_name(cluster: ClusterPlan) -> str:
    return f"{cluster.name}-gpus"


def metadata(cluster: ClusterPlan, name: str, **labels: str) -> Manifest:
    return {"name": name, "namespace": cluster.namespace, "labels": {**cluster.labels, **labels}}


def workload_metadata(cluster: ClusterPlan, name: str) -> Manifest:
    """Of the Job, PyTorchJob, TrainJob or JobSet, which a queue may hold back."""
    return metadata(cluster, name, **({QUEUE_LABEL: cluster.queue} if cluster.queue else {}))


def selector(run_id: str) -> str:
    """Label selector of everything of one run."""
    return f"{RUN_LABEL}={run_id}"


def job_names(cluster: ClusterPlan) -> list[str]:
    """Names of the workloads, one but for the ``job`` kind before Kubernetes 1.24."""
    if cluster.kind != "job" or cluster.indexed:
        return [cluster.name]
    return [f"{cluster.name}-{node}" for node in range(cluster.nodes)]


def rendezvous(cluster: ClusterPlan) -> str:
    """Where node 0 can be reached by the others, as ``HOST:PORT``.

    Source: kubeflow/trainer v1.9 pkg/common/util (general names), v2.3 pkg/runtime/framework/plugins/jobset, whose pods
    are those of a JobSet; kubernetes-sigs/jobset v0.12.0 api/jobset/v1alpha2 (enableDNSHostnames).
    """
    return _address(cluster, 0)


def addresses(cluster: ClusterPlan) -> tuple[str, ...]:
    """``HOST:PORT`` of every node; () of a PyTorchJob, whose operator gives names to the first alone."""
    if cluster.kind == "pytorchjob":
        return ()
    return tuple(_address(cluster, node) for node in range(cluster.nodes))


def _address(cluster: ClusterPlan, node: int) -> str:
    host = {
        "job": f"{cluster.name}-{node}.{cluster.name}",
        "pytorchjob": f"{cluster.name}-master-0",
        "trainjob": f"{cluster.name}-{REPLICATED_JOB}-0-{node}.{cluster.name}",
        "jobset": f"{cluster.name}-{REPLICATED_JOB}-0-{node}.{cluster.name}",
    }[cluster.kind]
    return f"{host}:{cluster.port}"


def node_variable(cluster: ClusterPlan) -> str:
    """The variable that tells a pod which node of the run it is.

    Source: kubernetes.io/docs/tasks/job/indexed-parallel-processing-static; kubeflow/trainer v1.9
    pkg/controller.v1/pytorch/envvar.go; v2's jobs, and ours of a JobSet, are Indexed Jobs.
    """
    if cluster.kind == "pytorchjob":
        return "RANK"
    if cluster.kind == "job" and not cluster.indexed:
        return "SEATRIAL_NODE"
    return "JOB_COMPLETION_INDEX"
