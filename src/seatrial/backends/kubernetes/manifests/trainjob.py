"""trainjob: Kubeflow's TrainJob v2 against a ClusterTrainingRuntime.

Source: github.com/kubeflow/trainer v2.3.0, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.backends.kubernetes.manifests.names import Manifest, workload_metadata
from seatrial.backends.kubernetes.manifests.pod import pod_spec
from seatrial.errors import UsageError
from seatrial.job.cluster import ClusterPlan, PodMount

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
)
_CONTAINER_KEYS = ("name", "securityContext")


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
    if cluster.claim is not None:
        raise UsageError(
            "A TrainJob cannot claim GPUs: its runtime does",
            cause="runtimePatches of trainer.kubeflow.org/v1alpha1 have no resourceClaims",
            run="seatrial run … --kind job",
        )
    if twice := mounted_twice(cluster.mounts):
        raise UsageError(
            f"A TrainJob can mount pvc:{twice} once, but both data and models lie on it",
            cause="a patch names a volume once, and a pod with two volumes of one claim never starts",
            run="seatrial run … --kind job   # or put data and models on claims of their own",
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
    pod["volumes"], mounts = _one_volume_a_mount(spec["volumes"], container["volumeMounts"])
    pod["containers"] = [{**{key: container[key] for key in _CONTAINER_KEYS}, "volumeMounts": mounts}]
    patched = {"template": {"spec": {"template": {"metadata": {"labels": dict(cluster.labels)}, "spec": pod}}}}
    patch = {
        "manager": MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [{"name": "node", **patched}]}}},
    }
    return [
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": workload_metadata(cluster, cluster.name),
            "spec": {"runtimeRef": {"name": cluster.runtime}, "trainer": trainer, "runtimePatches": [patch]},
        }
    ]


def mounted_twice(mounts: Sequence[PodMount]) -> str | None:
    """The claim that several of these mounts need, or None.

    A kubelet mounts a claim for one volume of a pod and waits for the other without end, so a second volume of the same
    claim is no way out. Source: github.com/kubernetes/kubernetes/issues/132921.
    """
    claims = [mount.volume.value for mount in mounts if mount.volume.kind == "pvc"]
    return next((claim for claim in claims if claims.count(claim) > 1), None)


def _one_volume_a_mount(volumes: list[Manifest], mounts: list[Manifest]) -> tuple[list[Manifest], list[Manifest]]:
    """The same pod with a volume for each mount: ``volumeMounts`` of a patch is a map whose key is the volume's name.

    A further mount of a volume gets a copy of it: files of one ConfigMap are the same in each, and our folders of one
    emptyDir share nothing, so each gets an emptyDir of its own.
    """
    sources = {volume["name"]: volume for volume in volumes}
    made: list[Manifest] = []
    renamed: list[Manifest] = []
    for mount in mounts:
        name, earlier = mount["name"], sum(mount["name"] == one["name"] for one in mounts[: len(renamed)])
        copy = f"{name}-{earlier}" if earlier else name
        made.append({**sources[name], "name": copy})
        renamed.append({**mount, "name": copy})
    return made, renamed
