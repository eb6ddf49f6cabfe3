"""Files that a script reads or writes in a pod, and that no volume holds."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator, Mapping

from seatrial.backends.containers.mounts import inside
from seatrial.job.in_container import CONTAINER_DATA, CONTAINER_MODELS
from seatrial.job.model import Job
from seatrial.job.reading.constants import is_outside
from seatrial.job.reading.files import Read, Write
from seatrial.job.script import ScriptFacts
from seatrial.planning.container.outside import IN_IMAGES, WRITABLE

_MOST_SHOWN = 3


def lost_writes(script: ScriptFacts, folder: str, kept: Mapping[str, object], scratch: Collection[str]) -> list[Write]:
    """Return a write for each folder that ends with the pod.

    Args:
        folder: the working directory. kept: mount → whether it outlives the pod. scratch: folders without results.
    """
    found: dict[str, Write] = {}
    for write in script.writes:
        path = posixpath.normpath(posixpath.join(folder, write.path))
        mount = max((each for each in kept if inside(path, each)), key=len, default="")
        if not kept.get(mount) and not any(inside(path, each) for each in scratch):
            found.setdefault(path if write.folder else posixpath.dirname(path), write)
    return list(found.values())[:_MOST_SHOWN]


def missing_reads(script: ScriptFacts, folder: str, held: Collection[str]) -> Iterator[tuple[str, Read]]:
    """Yield (path, its read) for what no volume has. Args: held: the mounts."""
    reads = [each for each in script.reads if is_outside(each.path)]
    known = [each.path for each in reads] + [each.path for each in script.writes]
    for path, where in script.machine_paths.items():
        if not any(inside(path, each) or inside(each, path) for each in known):
            reads.append(Read(path, where, None))
    paths = dict[str, Read]()
    for read in reads:
        paths.setdefault(posixpath.normpath(posixpath.join(folder, read.path)), read)
    absent = (each for each in paths.items() if not any(inside(each[0], kept) for kept in (*held, *IN_IMAGES)))
    yield from list(absent)[:_MOST_SHOWN]


def file_warnings(job: Job, script: ScriptFacts, lost: Collection[Write], *, alone: bool, build: bool) -> Iterator[str]:
    """Yield a sentence for each file that a pod of ours lacks or loses.

    Args:
        alone: the pod gets the script and no other file of the project. build: the image is one of ours.
    """
    options = job.kubernetes
    volumes = {CONTAINER_DATA: options.data, CONTAINER_MODELS: options.models}
    held = [*WRITABLE, *(folder for folder, volume in volumes.items() if volume is not None)]
    for path, read in missing_reads(script, job.folder_inside, held) if build else ():
        kind = "models" if inside(path, CONTAINER_MODELS) else "data"
        there = inside(path, f"/{kind}")
        how = f"-- {read.option} /{kind}" if read.option else f"read it below /{kind}"
        claim = "" if getattr(options, kind) else f"--{kind} pvc:NAME"
        advice = claim if there else " and ".join(filter(None, (how, claim and f"give {claim}")))
        yield f"{read.where} reads {read.path}, which no volume of the pod has: {advice}"
    for read in script.reads if alone else ():
        if not is_outside(read.path) and os.path.exists(job.folder / read.path):  # noqa: PTH110  # never raises
            yield f'{read.where} reads {read.path}, and the pod gets the script alone: [kubernetes] code = "image"'
    on = f", which is on {options.models}" if options.models else " and give --models pvc:NAME"
    for write in lost:
        is_model = inside(write.path, CONTAINER_MODELS)
        advice = "--models pvc:NAME keeps it" if is_model else f"save it below {CONTAINER_MODELS}{on}"
        yield f"{write}, and no volume keeps that: it is deleted with the pod; {advice}"
    if not lost and not (options.models and options.models.lasting):
        yield "Models are stored in the pod and deleted with it: --models pvc:NAME keeps them"


def visible_warnings(source: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that hides GPUs. Args: source: what sets it: ``-e``, ``job.yaml sets``."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if name in env:
            yield (
                f"{source} {name}={env[name]}: the device plugin gives each pod its own GPUs, and the variable can "
                "only hide them or show those of others; delete it"
            )
