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
    """The PyTorchJob; the operator makes the Services itself.

    No backoffLimit, and no deadline: where one is reached, the operator deletes the pods and their logs before it
    says that the job has failed, whatever cleanPodPolicy is. Each agent counts for itself (agent/attempts.py).
    Source: kubeflow/training-operator v1.9.0 pkg/controller.v1/common/job.go, DeletePodsAndServices.
    """
    replicas = {"Master": _replica(cluster, 1)}
    if cluster.nodes > 1:
        replicas["Worker"] = _replica(cluster, cluster.nodes - 1)
    spec: Manifest = {
        "runPolicy": {
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
        # ExitCode: a pod that ends with 128 or more, which only one says that was killed or asked to end, is made anew;
        # any other failure is the job's, and its pod stays. OnFailure runs what has failed again in the same pod.
        "restartPolicy": "ExitCode" if cluster.restarts else "Never",
        "template": {"metadata": {"labels": dict(cluster.labels)}, "spec": spec},
    }
