"""Types for a Job's demands on a cluster, and the pods of a Plan. Pure data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from seatrial.job.value import Value

#: job: Indexed Job. pytorchjob: Kubeflow v1. trainjob: Kubeflow v2.
#: jobset: a JobSet of one Indexed Job.
Kind = Literal["job", "jobset", "pytorchjob", "trainjob"]
CodeWay = Literal["image", "configmap", "none"]

#: Where the agent, its plan and the files of small things are inside a pod; read-only.
POD_CONFIG = "/seatrial/config"


class Volume(Value):
    """A volume of a cluster.

    Attributes:
        kind: ``pvc`` (a PersistentVolumeClaim's name), ``hostpath`` (a folder of the node) or ``emptydir``.
        value: name, absolute path, or "" for an emptyDir.
        path: folder inside the claim, "" for its root.
    """

    kind: Literal["pvc", "hostpath", "emptydir"]
    value: str = ""
    path: str = ""

    @property
    def lasting(self) -> bool:
        """It outlives the pod."""
        return self.kind != "emptydir"

    def __str__(self) -> str:
        inside = f"/{self.path}" if self.path else ""
        return f"{self.kind}:{self.value}{inside}" if self.value else self.kind


class Toleration(Value):
    """A taint that a pod puts up with; ``value`` None: any value; ``effect`` None: every effect."""

    key: str
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class PodMount(Value):
    """A volume at a path; ``sub_path`` is a folder or file inside it."""

    volume: Volume
    target: str
    sub_path: str = ""
    read_only: bool = False


class GpuClaim(Value):
    """Claim of each pod on GPUs, by Dynamic Resource Allocation.

    Attributes:
        device_class: NVIDIA's for whole GPUs or for MIG slices.
        profile: of the slices, such as ``1g.10gb``.
    """

    model_config = ConfigDict(extra="ignore")  # plans of earlier versions have ``api``

    device_class: str
    profile: str | None = None


class ClusterPlan(Value):
    """The workload, as every kind renders it. Of plans of earlier versions, keys that are gone are ignored.

    Attributes:
        name: of the workload and its other objects: a DNS label.
        gpus, cpus, memory_bytes: of each pod; requests equal limits. None: a small request and no limit.
        gpu_resource: the device plugin's name of them; claim: instead of it, a claim of as many devices.
        shm_bytes: of /dev/shm, which lies in the pod's memory; shm_requested: on top of the least memory requested.
        recipes: our wheel is mounted with the agent, for recipes in a ready image.
        code: how the project's code gets in. files: target path → text of a ConfigMap's file.
        uid: user, group and fsGroup.
        run_mount: where the run's folder lies when a volume keeps it, else None (an emptyDir).
        run_in_models: the run's folder is a folder of /models, for a kind that can mount a volume once.
        grace_s: between the kubelet's SIGTERM and SIGKILL.
        runtime: name of the ClusterTrainingRuntime, for ``trainjob``.
        queue: Kueue's LocalQueue that admits the workload, or None.
        own: the user's own workload, which is rendered as it is with the agent in its pods; None: ours.
        disruptions_free: a pod that the cluster itself evicts does not count as a restart (Kubernetes 1.26).
    """

    model_config = ConfigDict(extra="ignore")

    name: str
    kind: Kind
    own: dict[str, Any] | None = None
    disruptions_free: bool = True
    context: str | None = None
    namespace: str = "default"
    nodes: int = 1
    min_nodes: int | None = None
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    claim: GpuClaim | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    requests: dict[str, str] = Field(default_factory=dict)
    shm_bytes: int
    shm_requested: bool = False
    image: str
    command: tuple[str, ...]
    workdir: str
    env: dict[str, str] = Field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    recipes: bool = False
    code: CodeWay = "none"
    files: dict[str, str] = Field(default_factory=dict)
    mounts: tuple[PodMount, ...] = ()
    run_mount: PodMount | None = None
    run_in_models: bool = False
    read_only_root: bool = True
    uid: int = 1000
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str | None = None
    runtime_class: str | None = None
    service_account: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    queue: str | None = None
    restarts: int = 0
    ttl_s: int = 24 * 3600
    grace_s: int = 40
    port: int = 29400
    runtime: str = "torch-distributed"
    labels: dict[str, str] = Field(default_factory=dict)
