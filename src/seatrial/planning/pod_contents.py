"""Contents of a cluster's pods: the image, the project's code, the volumes, and the GPUs."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from seatrial.backends import table
from seatrial.backends.base import ImageFacts
from seatrial.backends.containers.mounts import inside
from seatrial.backends.kubernetes.manifests import MAX_CONFIG_MAP_BYTES
from seatrial.backends.kubernetes.survey import CLAIMS_SINCE, ClusterFacts, Node
from seatrial.errors import CapacityError, GpuRequestError, ImageError, SeatrialError, UsageError
from seatrial.images.dockerfile.context import CODE, with_code
from seatrial.images.plan import plan_image
from seatrial.images.resolve.uv import LIMIT_S, PATIENT_S, UvResolver
from seatrial.job.cluster import CodeWay, GpuClaim, PodMount, Volume
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_MODELS, CONTAINER_RESUME, CONTAINER_RUN
from seatrial.job.model import Job
from seatrial.job.plan import Choice, ImagePlan
from seatrial.job.reading.constants import is_outside
from seatrial.job.reading.file_calls import Write
from seatrial.job.script import ScriptFacts
from seatrial.job.units import format_bytes
from seatrial.planning.container.outside import IN_IMAGES
from seatrial.planning.site import GpuPlan, Places, Site
from seatrial.stack.machine import TargetMachine, this_machine
from seatrial.system.host import Host
from seatrial.system.text import as_typed

#: Most paths named in warnings.
_MOST_PATHS = 3
#: NVIDIA's device classes. Source: github.com/kubernetes-sigs/dra-driver-nvidia-gpu v25, deployments/helm.
GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"
#: Prefix of a MIG slice's resource, before its profile. Source: NVIDIA/k8s-device-plugin, docs on mig.strategy mixed.
MIG_RESOURCE = "nvidia.com/mig-"
#: Labels of NVIDIA's GPU feature discovery: of 0.17 and later, and of those before.
#: Source: github.com/NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery/README.md.
_PRODUCT, _MAJOR, _MINOR = "nvidia.com/gpu.product", "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
_DRIVER = "nvidia.com/cuda.driver-version.full"
_MEMORY_MIB = "nvidia.com/gpu.memory"
_DRIVER_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")


def cluster_image(job: Job, site: Site, script: ScriptFacts, gpus: PodGpus) -> tuple[ImagePlan, tuple[Choice, ...]]:
    """Plan an image for the newest GPUs and the oldest driver of the nodes. Raises ImageError, as ``_ready``."""
    limit_s = PATIENT_S if site.launches else LIMIT_S
    image, choices = plan_image(
        job,
        script=script,
        cpu_only=not gpus.plan.count,
        machine=cluster_machine(gpus.facts, job.kubernetes.node_selector),
        multi_gpu=gpus.plan.count > 1 or script.multi_gpu_evidence is not None,
        resolver=UvResolver(site.host.cache_folder / "packages", site.host, limit_s=limit_s),
    )
    return (image if image.build else _ready(job, image, site.host)), choices


def _ready(job: Job, image: ImagePlan, host: Host) -> ImagePlan:
    """Return a ready image with its facts, if an engine here has it.

    Raises ImageError: its own command, which the agent would start, is unknown.
    """
    facts = _facts_here(image.tag, host)
    if facts is None and job.target.kind == "image" and not job.target.args:
        problem = f"The command of {image.tag} is unknown: no engine on this machine has it"
        run = f"seatrial run --image {image.tag} … -- COMMAND   # or: docker pull {image.tag}"
        raise ImageError(problem, cause="the agent starts the image's command, so it must know the command", run=run)
    known = {"entrypoint": facts.entrypoint, "cmd": facts.cmd, "env": facts.env} if facts else {}
    return image.changed(python=job.image.python or "python3", **known)


def _facts_here(tag: str, host: Host) -> ImageFacts | None:
    for name in table.ENGINES:
        with suppress(SeatrialError):
            if (facts := table.engine(name, host).images.image(tag)) is not None:
                return facts
    return None


class Code(NamedTuple):
    """Describes how the project's code gets into the pod; ``files`` are those of a ConfigMap."""

    way: CodeWay
    choice: Choice
    files: dict[str, str]
    warnings: tuple[str, ...] = ()


def project_code(job: Job, script: ScriptFacts, image: ImagePlan) -> tuple[ImagePlan, Code]:
    """Choose the way of the code; return the image, with a layer of the code where that is its way, and the way."""
    if job.target.kind in ("recipe", "image"):
        choice = Choice(what="code", value="in the image", reason=f"the target is a {job.target.kind}")
        return image, Code("none", choice, {})
    path = job.project / job.target.value
    apart = [volume for volume in (job.project / "data", job.project / "models") if volume.is_dir()]
    alone = job.target.kind == "script" and len(script.files) <= 1
    if (way := job.kubernetes.code) == "auto":
        obstacles = {
            "more than one file": not alone or bool(_left_here(job, script, [path], apart)),
            "a registry is named": job.kubernetes.registry is not None,
            "too large for a ConfigMap": alone and path.is_file() and path.stat().st_size >= MAX_CONFIG_MAP_BYTES,
        }
        why_not = [name for name, is_so in obstacles.items() if is_so]
        way, reason = ("image", why_not[0]) if why_not else ("configmap", "a single script")
    else:
        reason = f"[kubernetes] code = {way!r}"
    if way == "image":
        layered = with_code(image, job.project, apart)
        left = _left_here(job, script, [job.project / each.removeprefix(f"{CODE}/") for each in layered.context_files])
        return layered, Code("image", Choice(what="code", value="in the image", reason=reason), {}, left)
    if job.target.kind != "script":
        raise UsageError("Only a script can go into a ConfigMap", run='in seatrial.toml: [kubernetes] code = "image"')
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        problem = f"{path.name} is not UTF-8, so it cannot go into a ConfigMap"
        raise UsageError(problem, run=f"file {as_typed(path)}") from None
    name = job.target.value if not job.target.value.startswith("/") else path.name
    if (size := len(text.encode())) >= MAX_CONFIG_MAP_BYTES:
        cause = "[kubernetes] code = 'configmap'"
        run = 'in seatrial.toml: [kubernetes] code = "image" and registry = "ghcr.io/me"'
        raise UsageError(f"{name} has {format_bytes(size)}, but a ConfigMap must be under 1 MiB", cause=cause, run=run)
    choice = Choice(what="code", value=f"ConfigMap, {format_bytes(size)}", reason=reason)
    return image, Code("configmap", choice, {name: text}, _left_here(job, script, [path]))


def _left_here(job: Job, script: ScriptFacts, sent: Collection[Path], apart: Collection[Path] = ()) -> tuple[str, ...]:
    """Return a sentence for each path of the project that a script reads, unless it is ``sent`` or below ``apart``."""
    read = {Path(os.path.normpath(job.folder / each.path)): each for each in script.reads}
    own = [each for each in read if each.is_relative_to(job.project) and os.path.exists(each)]  # noqa: PTH110  never raises
    there = {above for each in sent for above in (each, *each.parents)}
    left = (read[each] for each in own if each not in there and not any(map(each.is_relative_to, apart)))
    here = f"which stays on this machine; --data pvc:NAME mounts a volume at {CONTAINER_DATA}"
    return tuple(f"{each}, {here}" for each in left)


class Volumes(NamedTuple):
    """Holds a pod's volumes, and its folders as the pod sees them.

    ``run`` is the run's own folder on the volume of models; None where it needs no mount: it does not outlive the
    pod, or lies in the mounted folder of models."""

    models: Volume
    mounts: tuple[PodMount, ...]
    run: PodMount | None
    places: Places


def volumes_of(job: Job, run_id: str) -> Volumes:
    """Return the pod's volumes. Raises UsageError for a run to resume without the volume that has its checkpoints."""
    options = job.kubernetes
    models = options.models or Volume(kind="emptydir")
    mounts = [PodMount(volume=models, target=CONTAINER_MODELS)]
    if options.data is not None:
        mounts.append(PodMount(volume=options.data, target=CONTAINER_DATA, read_only=True))
    data, resume = CONTAINER_DATA if options.data else None, None
    places = Places(job.folder_inside, CONTAINER_RUN, data, CONTAINER_MODELS, CONTAINER_RESUME if job.resume else None)
    if job.resume is not None:
        if not models.lasting:
            problem = "--resume needs the volume with the earlier run's checkpoints"
            raise UsageError(problem, run="seatrial run … --models pvc:NAME")
        path = f".seatrial/{job.resume}/checkpoints"
        resume = PodMount(volume=models, target=CONTAINER_RESUME, sub_path=path, read_only=True)
    if options.kind == "trainjob" and models.lasting:  # a TrainJob can mount a volume once
        earlier = f"{CONTAINER_MODELS}/{resume.sub_path}" if resume else None
        places = places._replace(run=f"{CONTAINER_MODELS}/.seatrial/{run_id}", resume=earlier)
        return Volumes(models, tuple(mounts), None, places)
    mounts += [resume] if resume else []
    run = PodMount(volume=models, target=CONTAINER_RUN, sub_path=f".seatrial/{run_id}") if models.lasting else None
    return Volumes(models, tuple(mounts), run, places)


def volume_warnings(models: Volume, data: Volume | None, facts: ClusterFacts) -> Iterator[str]:
    """Yield a sentence for each volume that lies on one node."""
    each = "each node has" if facts.nodes is None else f"each of the cluster's {len(facts.nodes)} nodes has"
    for path in [volume for volume in (models, data) if volume is not None and volume.kind == "hostpath"]:
        if facts.nodes is not None and len(facts.nodes) == 1:
            yield f"{path}: a folder on whichever node runs the pod; the cluster may forbid it"
        else:
            way = "use pvc:NAME, or [kubernetes.node_selector] for one node"
            yield f"{path}: {each} its own folder there, so a pod on another node finds it empty; {way}"


def lost_writes(script: ScriptFacts, folder: str, kept: Mapping[str, object], scratch: Collection[str]) -> list[Write]:
    """Return a write for each folder that ends with the pod.

    ``kept``: mount → whether it outlives the pod. ``scratch``: folders without results.
    """
    found: dict[str, Write] = {}
    for write in script.writes:
        path = posixpath.normpath(posixpath.join(folder, write.path))
        mount = max((each for each in kept if inside(path, each)), key=len, default="")
        if not kept.get(mount) and not any(inside(path, each) for each in scratch):
            found.setdefault(path if write.folder else posixpath.dirname(path), write)
    return list(found.values())[:_MOST_PATHS]


def file_warnings(script: ScriptFacts, mounts: Collection[str], how: str, lost: list[Write], keep: str) -> list[str]:
    """Return a sentence for each path that no volume has or keeps. Args: how, keep: advice on a volume with it."""
    outside = (each for each in script.reads if is_outside(each.path))
    absent = [each for each in outside if not any(inside(each.path, mount) for mount in (*mounts, *IN_IMAGES))]
    reads = [f"{each}, which no volume of the pod has; {how}" for each in absent[:_MOST_PATHS]]
    return [*reads, *(f"{each}, and no volume keeps that: it is deleted with the pod; {keep}" for each in lost)]


def visible_warnings(source: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that hides GPUs. Args: source: what sets it: ``-e``, ``job.yaml sets``."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if name in env:
            why = "the variable can only hide them or show GPUs of other pods; delete it"
            yield f"{source} {name}={env[name]}: the device plugin gives each pod its own GPUs, and {why}"


class PodGpus(NamedTuple):
    """GPUs of each pod; ``facts``: the cluster's, without nodes where GPUs are claimed: claims are not counted."""

    plan: GpuPlan
    choice: Choice
    facts: ClusterFacts
    warnings: tuple[str, ...] = ()
    claim: GpuClaim | None = None


def pod_resource(job: Job) -> str:
    """Return the device plugin's name of the requested GPUs; it writes a dot for the plus of a profile."""
    profile = job.gpus.profile
    return f"{MIG_RESOURCE}{profile.replace('+', '.')}" if profile else job.kubernetes.gpu_resource


def pod_gpus(job: Job, facts: ClusterFacts) -> PodGpus:
    """Plan a pod's GPUs. Raises GpuRequestError for anything but a count, CapacityError if no node has enough."""
    request, profile = job.gpus, job.gpus.profile
    if request.kind == "none":
        return PodGpus(GpuPlan("none", 0, "none"), _choice("none", "--gpus none"), facts)
    claim, name = None, pod_resource(job)
    if job.kubernetes.gpu_claims:
        if facts.version < CLAIMS_SINCE:
            message = f"[kubernetes] gpu_claims needs resource.k8s.io/v1, which Kubernetes {facts.git_version} lacks"
            raise UsageError(message, cause="version 1.34 and later serve it", run="seatrial doctor --on k8s")
        claim = GpuClaim(device_class=MIG_CLASS if profile else GPU_CLASS, profile=profile)
        name = f"{claim.device_class} ({profile})" if profile else claim.device_class
        facts = replace(facts, nodes=None)
    claimed = "" if claim is None else "; [kubernetes] gpu_claims"
    plan = GpuPlan("required", request.count or 1, "device-plugin" if claim is None else "resource-claim")
    if request.kind == "auto":
        found, reason = _auto(job, name, claim, facts)
        if not found:
            return PodGpus(GpuPlan("auto-cpu", 0, "none"), _choice("none", reason), facts)
        return PodGpus(plan, _choice(f"1 {name}", reason + claimed), facts, claim=claim)
    if request.kind != "count" or request.count is None:
        problem = f"--gpus {request}: on Kubernetes the scheduler picks the GPUs, so only a count can be requested"
        raise GpuRequestError(problem, run="seatrial run … --gpus 1   # per pod; --nodes N for several pods")
    if request.share:
        problem = f"--gpus {request}: Kubernetes hands out whole GPUs and MIG slices, no parts of one"
        raise GpuRequestError(problem, run="seatrial run … --gpus mig-1g.10gb   # or --gpus 1")
    if request.count > 1 and name.startswith(MIG_RESOURCE):
        problem = f"{request.count} {name} per pod: CUDA gives a process one MIG slice and no other GPU"
        raise GpuRequestError(problem, run="seatrial run … --gpus 1 --nodes N")
    warning = _capacity_problem(request.count, name, facts)
    if warning is not None and job.kubernetes.require_capacity:
        raise CapacityError(warning, cause="--require-capacity", run="kubectl get nodes -L nvidia.com/gpu.product")
    choice = _choice(f"{request.count} {name} per pod", f"--gpus {request}{claimed}")
    return PodGpus(plan, choice, facts, () if warning is None else (warning,), claim)


def _auto(job: Job, name: str, claim: GpuClaim | None, facts: ClusterFacts) -> tuple[bool, str]:
    """Return whether ``auto`` takes a GPU, and why."""
    if job.image.target is not None:
        return True, f"built for {job.image.target}"
    if claim is not None:
        return True, "--gpus auto"
    if any(node.allocatable for node in facts.nodes or ()):
        return True, "a node has some"
    reason = "free GPUs are unknown" if facts.nodes is None else f"no node has {name}"
    others = _offered(facts.nodes or ())
    return False, f"{reason}; they offer {others}" if others else reason


def _choice(value: str, reason: str) -> Choice:
    return Choice(what="gpus", value=value, reason=reason)


def _offered(nodes: tuple[Node, ...]) -> str:
    """Return the names of the resources that the nodes have instead."""
    return ", ".join(sorted({name for node in nodes for name in node.offers}))


def _capacity_problem(count: int, name: str, facts: ClusterFacts) -> str | None:
    """Return a warning if a pod requests more GPUs than any node has: a pool may still add one."""
    if (nodes := facts.nodes) is None:
        return None
    best = max(nodes, key=lambda node: node.capacity, default=None)
    if best is None or best.capacity == 0:
        others = _offered(nodes)
        offered = f"; its nodes offer {others}" if others else ""
        return f"No node of this cluster has {name} now{offered}: pods wait until one is added" + _single(name, nodes)
    if best.capacity < count:
        return f"No node has {count} {name}: the largest, {best.name}, has {best.capacity}"
    return None


def _single(name: str, nodes: tuple[Node, ...]) -> str:
    """Return advice for slices that nodes present as GPUs: the device plugin's MIG strategy ``single``.

    Source: NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery (the product's label ends in ``-MIG-1g.10gb``).
    """
    profile = name.removeprefix(MIG_RESOURCE)
    products = [node.product for node in nodes if node.product and node.product.endswith(f"-MIG-{profile}")]
    if not products or profile == name:
        return ""
    return f'. Some call such slices GPUs: --gpus 1 with node_selector {{"nvidia.com/gpu.product" = "{products[0]}"}}'


# ----------------------------------------------------------------------------------- the nodes as a machine


def cluster_machine(facts: ClusterFacts, node_selector: Mapping[str, str]) -> TargetMachine:
    """Return the GPUs that labels name on the nodes where pods may land, and the oldest driver there."""
    nodes = _eligible(facts, node_selector)
    kinds = sorted({(node.labels[_PRODUCT], _capability(node)) for node in nodes if _PRODUCT in node.labels}, key=str)
    parts = [".".join(filter(None, (node.labels.get(name) for name in _DRIVER_PARTS))) for node in nodes]
    drivers = [node.labels.get(_DRIVER) or joined for node, joined in zip(nodes, parts, strict=True)]
    machine = this_machine(min(filter(None, drivers), key=Version, default=None), kinds)
    return TargetMachine(machine.driver, machine.gpus, "the cluster")


def gpu_memory_warnings(job: Job, facts: ClusterFacts) -> tuple[str, ...]:
    """Warn of a ``--gpu-memory`` above the memory of every GPU that the pods may get, if all nodes report it."""
    sizes = [node.labels.get(_MEMORY_MIB, "") for node in _eligible(facts, job.kubernetes.node_selector)]
    if job.gpu_memory_bytes is None or not sizes or not all(size.isdigit() for size in sizes):
        return ()
    largest = max(int(size) for size in sizes) * 2**20
    if job.gpu_memory_bytes <= largest:
        return ()
    limit = format_bytes(job.gpu_memory_bytes)
    return (f"--gpu-memory {limit}: the largest GPU of this cluster has {format_bytes(largest)}",)


def _eligible(facts: ClusterFacts, node_selector: Mapping[str, str]) -> list[Node]:
    """Return the nodes with GPUs that the pods may land on."""
    return [node for node in facts.nodes or () if node.capacity and node_selector.items() <= node.labels.items()]


def _capability(node: Node) -> str | None:
    major, minor = node.labels.get(_MAJOR), node.labels.get(_MINOR)
    return f"{major}.{minor}" if major and minor else None
