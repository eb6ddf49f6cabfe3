"""pytorchjob: Kubeflow's PyTorchJob v1, a master and workers.

Source: github.com/kubeflow/trainer release-1.9, manifests/base/crds/kubeflow.org_pytorchjobs.yaml.
"""

from __future__ import annotations

from seatrial.backends.kubernetes.manifests.names import Manifest, workload_metadata
from seatrial.backends.kubernetes.manifests.pod import pod_spec
from seatrial.job.cluster import ClusterPlan

CONTAINER = "pytorch"  # the operator finds its container by this name

#: The port whose name the operator looks for; its Service for the master carries it.
_PORT_NAME = "pytorchjob-port"


def render(cluster: ClusterPlan) -> list[Manifest]:
    """The PyTorchJob; the operator makes the Services itself."""
    replicas = {"Master": _replica(cluster, 1)}
    if cluster.nodes > 1:
        replicas["Worker"] = _replica(cluster, cluster.nodes - 1)
    spec: Manifest = {
        "runPolicy": {
            "backoffLimit": cluster.restarts * cluster.nodes,
            "cleanPodPolicy": "None",  # a pod that is gone has no log
            "ttlSecondsAfterFinished": cluster.ttl_s,
        },
        "pytorchReplicaSpecs": replicas,
    }
    if cluster.min_nodes is not None:
        spec["elasticPolicy"] = {
            "minReplicas": cluster.min_nodes,
            "maxReplicas": cluster.nodes,
            "maxRestarts": cluster.restarts,
            "rdzvBackend": "c10d",
        }
    named = workload_metadata(cluster, cluster.name)
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": named, "spec": spec}]


def _replica(cluster: ClusterPlan, count: int) -> Manifest:
    spec = pod_spec(cluster, CONTAINER)
    spec["containers"][0]["ports"] = [{"name": _PORT_NAME, "containerPort": cluster.port}]
    return {
        "replicas": count,
        "restartPolicy": "OnFailure" if cluster.restarts else "Never",
        "template": {"metadata": {"labels": dict(cluster.labels)}, "spec": spec},
    }
