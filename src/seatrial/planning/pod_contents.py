"""Contents of a cluster's pods: the image, the project's code, and the volumes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import ImageFacts
from seatrial.backends.kubernetes.manifests import MAX_CONFIG_MAP_BYTES
from seatrial.backends.kubernetes.survey import ClusterFacts
from seatrial.errors import ImageError, SeatrialError, UsageError
from seatrial.images.dockerfile.context import with_code
from seatrial.images.plan import plan_image
from seatrial.images.resolve.uv import UvResolver
from seatrial.job.cluster import CodeWay, Kind, PodMount, Volume
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_MODELS, CONTAINER_RESUME, CONTAINER_RUN
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.script import ScriptFacts
from seatrial.job.units import format_bytes
from seatrial.planning.pod_gpus import cluster_machine
from seatrial.system.host import Host
from seatrial.system.text import as_typed


def cluster_image(
    job: Job, script: ScriptFacts, facts: ClusterFacts, host: Host, cache_folder: Path
) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """Plan an image for the newest GPUs and the oldest driver of the nodes. Raises ImageError, as ``_ready``."""
    request = job.gpus
    cpu_only = request.kind == "none" or (
        request.kind == "auto" and not any(node.allocatable for node in facts.nodes or ())
    )
    image, choices = plan_image(
        job,
        script=script,
        cpu_only=cpu_only,
        machine=cluster_machine(facts, job.kubernetes.node_selector),
        multi_gpu=request.kind == "all" or (request.count or 0) > 1 or script.multi_gpu_evidence is not None,
        resolver=UvResolver(cache_folder / "packages", host),
    )
    return (image if image.build else _ready(job, image, host)), choices


def _ready(job: Job, image: ImagePlan, host: Host) -> ImagePlan:
    """Return a ready image with its facts, if an engine here has it. An image's own command must be known: the agent
    starts it.

    Raises ImageError when it is not.
    """
    facts = _facts_here(image.tag, host)
    if facts is None and job.target.kind == "image" and not job.target.args:
        raise ImageError(
            f"The command of {image.tag} is unknown: no engine on this machine has it",
            cause="the agent starts the image's command, so it needs to know it",
            run=f"seatrial run --image {image.tag} … -- COMMAND   # or: docker pull {image.tag}",
        )
    known = {"entrypoint": facts.entrypoint, "cmd": facts.cmd, "env": facts.env} if facts else {}
    return image.changed(python=job.image.python or "python3", **known)


def _facts_here(tag: str, host: Host) -> ImageFacts | None:
    for name in table.ENGINES:
        try:
            if (facts := table.engine(name, host).images.image(tag)) is not None:
                return facts
        except SeatrialError:
            continue
    return None


@dataclass(frozen=True)
class Code:
    """Describes how the project's code gets into the pod; ``files`` are those of a ConfigMap."""

    way: CodeWay
    choice: Choice
    files: dict[str, str]


def project_code(job: Job, script: ScriptFacts, image: ImagePlan) -> tuple[ImagePlan, Code]:
    """Choose the way of the code; return the image, with a layer of the code where that is its way, and the way."""
    if job.target.kind in ("recipe", "image"):
        choice = Choice(what="code", value="in the image", reason=f"the target is a {job.target.kind}")
        return image, Code("none", choice, {})
    path = job.project / job.target.value
    alone = job.target.kind == "script" and len(script.files) <= 1
    way = job.kubernetes.code
    if way == "auto":
        obstacles = {
            "more than one file": not alone,
            "a registry is named": job.kubernetes.registry is not None,
            "too large for a ConfigMap": alone and path.is_file() and path.stat().st_size >= MAX_CONFIG_MAP_BYTES,
        }
        why_not = [name for name, is_so in obstacles.items() if is_so]
        way, reason = ("image", why_not[0]) if why_not else ("configmap", "a single script")
    else:
        reason = f"[kubernetes] code = {way!r}"
    if way == "image":
        folders = [volume for volume in (job.project / "data", job.project / "models") if volume.is_dir()]
        layered = with_code(image, job.project, folders)
        return layered, Code("image", Choice(what="code", value="in the image", reason=reason), {})
    if job.target.kind != "script":
        raise UsageError("Only a script can go into a ConfigMap", run='seatrial run … with [kubernetes] code = "image"')
    text = _text_of(path)
    name = job.target.value if not job.target.value.startswith("/") else Path(job.target.value).name
    if len(text.encode()) >= MAX_CONFIG_MAP_BYTES:
        raise UsageError(
            f"{name} has {format_bytes(len(text.encode()))}, but a ConfigMap must be under 1 MiB",
            cause="[kubernetes] code = 'configmap'",
            run='seatrial run … with [kubernetes] code = "image" and registry = "ghcr.io/me"',
        )
    size = format_bytes(len(text.encode()))
    return image, Code("configmap", Choice(what="code", value=f"ConfigMap, {size}", reason=reason), {name: text})


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(
            f"{path.name} is not UTF-8, so it cannot go into a ConfigMap", run=f"file {as_typed(path)}"
        ) from None


@dataclass(frozen=True)
class Volumes:
    """Holds a pod's volumes, and its folders as the pod sees them.

    ``run`` is the run's own folder on the volume of models; None where it needs no mount: it does not outlive the
    pod, or lies in the mounted folder of models."""

    models: Volume
    mounts: tuple[PodMount, ...]
    run: PodMount | None
    run_folder: str = CONTAINER_RUN
    resume_folder: str = CONTAINER_RESUME


def volumes_of(job: Job, run_id: str, kind: Kind) -> Volumes:
    """Return the pod's volumes. Raises UsageError for a run to resume without the volume that has its checkpoints."""
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
    """Return warnings about volumes that lie on one node or end with the pod.

    ``machines``: the cluster's count; None where they may not be listed."""
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
