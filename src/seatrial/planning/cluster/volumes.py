"""The volumes of a cluster's pods: what lies on them, and where the run's own folder is. Pure."""

from __future__ import annotations

from seatrial.errors import UsageError
from seatrial.job.cluster import Kind, PodMount, Volume
from seatrial.job.model import Job
from seatrial.job.plan import CONTAINER_DATA, CONTAINER_MODELS, CONTAINER_RESUME, CONTAINER_RUN
from seatrial.system.records import dataclass


@dataclass(frozen=True)
class Volumes:
    """``run`` is the run's own folder on the volume of models; None where it needs no mount: it does not outlive the
    pod, or lies in the mounted folder of models. The folders are as the pod sees them.
    """

    models: Volume
    mounts: tuple[PodMount, ...]
    run: PodMount | None
    run_folder: str = CONTAINER_RUN
    resume_folder: str = CONTAINER_RESUME


def volumes_of(job: Job, run_id: str, kind: Kind) -> Volumes:
    """Raises UsageError for a run to resume without the volume that has its checkpoints."""
    options = job.kubernetes
    models = options.models or Volume(kind="emptydir")
    mounts = [PodMount(volume=models, target=CONTAINER_MODELS)]
    if options.data is not None:
        mounts.append(PodMount(volume=options.data, target=CONTAINER_DATA, read_only=True))
    resume = _resume_mount(job, models) if job.resume is not None else None
    if kind == "trainjob" and models.lasting:  # a TrainJob can mount a volume once
        folders = [f"{CONTAINER_MODELS}/{path}" for path in (f".seatrial/{run_id}", resume.sub_path if resume else "")]
        return Volumes(models, tuple(mounts), None, *folders)
    mounts += [resume] if resume else []
    run = PodMount(volume=models, target=CONTAINER_RUN, sub_path=f".seatrial/{run_id}") if models.lasting else None
    return Volumes(models, tuple(mounts), run)


def _resume_mount(job: Job, models: Volume) -> PodMount:
    if not models.lasting:
        raise UsageError(
            "--resume needs the volume with the earlier run's checkpoints", run="seatrial run … --models pvc:NAME"
        )
    path = f".seatrial/{job.resume}/checkpoints"
    return PodMount(volume=models, target=CONTAINER_RESUME, sub_path=path, read_only=True)


def volume_warnings(models: Volume, data: Volume | None, machines: int | None) -> tuple[str, ...]:
    """Args:
    machines: that the cluster has; None where they may not be listed.
    """
    hostpaths = [str(volume) for volume in (models, data) if volume is not None and volume.kind == "hostpath"]
    warnings = [_hostpath_warning(path, machines) for path in hostpaths]
    if not models.lasting:
        warnings.append("Models are stored in the pod and deleted with it: --models pvc:NAME keeps them")
    return tuple(warnings)


def _hostpath_warning(path: str, machines: int | None) -> str:
    if machines == 1:
        return f"{path}: a folder on whichever node runs the pod; the cluster may forbid it"
    each = "each node has" if machines is None else f"each of the cluster's {machines} nodes has"
    return (
        f"{path}: {each} a folder of its own there, so a pod that is started on another one finds nothing in it; "
        "use pvc:NAME, or [kubernetes.node_selector] for one node"
    )
