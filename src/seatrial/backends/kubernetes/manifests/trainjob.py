"""trainjob: Kubeflow's TrainJob v2 against a ClusterTrainingRuntime.

Source: github.com/kubeflow/trainer v2.3.0, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml.
"""

from __future__ import annotations

from seatrial.backends.kubernetes.manifests.names import Manifest, metadata
from seatrial.backends.kubernetes.manifests.pod import pod_spec
from seatrial.errors import UsageError
from seatrial.job.cluster import ClusterPlan

CONTAINER = "node"  # of the runtime's replicated job of the same name
MANAGER = "seatrial"

#: Of our pod spec, what a patch of a runtime may say.
_POD_KEYS = (
    "securityContext",
    "nodeSelector",
    "tolerations",
    "serviceAccountName",
    "imagePullSecrets",
    "terminationGracePeriodSeconds",
    "volumes",
)
_CONTAINER_KEYS = ("name", "securityContext", "volumeMounts")


def render(cluster: ClusterPlan) -> list[Manifest]:
    """The TrainJob: the trainer, and a patch of the runtime's pods with volumes, security and places.

    Raises UsageError for what its patches cannot say.
    """
    for flag, value in (("priority_class", cluster.priority_class), ("runtime_class", cluster.runtime_class)):
        if value:
            raise UsageError(
                f"A TrainJob cannot set {flag}: its runtime does",
                cause=f"runtimePatches of trainer.kubeflow.org/v1alpha1 have no {flag}",
                run="seatrial run … --kind job   # or put it into a TrainingRuntime of your own",
            )
    spec = pod_spec(cluster, CONTAINER)
    container = spec["containers"][0]
    trainer = {
        "image": cluster.image,
        "command": container["command"],
        "env": container["env"],
        "numNodes": cluster.nodes,
        "numProcPerNode": max(1, cluster.gpus),
        "resourcesPerNode": container["resources"],
    }
    pod = {key: spec[key] for key in _POD_KEYS if key in spec}
    pod["containers"] = [{key: container[key] for key in _CONTAINER_KEYS}]
    patched = {"template": {"spec": {"template": {"metadata": {"labels": dict(cluster.labels)}, "spec": pod}}}}
    patch = {
        "manager": MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": "node", **patched}]}}},
    }
    return [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": metadata(cluster, cluster.name),
            "spec": {"runtimeRef": {"name": cluster.runtime}, "trainer": trainer, "runtimePatches": [patch]},
        }
    ]
