"""Files that a script reads or writes in a pod, and that no volume holds; variables that hide its GPUs."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping

from seatrial.backends.containers.mounts import inside
from seatrial.job.reading.constants import is_outside
from seatrial.job.reading.files import Write
from seatrial.job.script import ScriptFacts
from seatrial.planning.container.outside import IN_IMAGES

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


def file_warnings(script: ScriptFacts, mounts: Collection[str], how: str, lost: list[Write], keep: str) -> list[str]:
    """Return a sentence for each path that no volume has or keeps. Args: how, keep: advice on a volume with it."""
    found = {each.path: f"{each.where} reads {each.path}" for each in script.reads if is_outside(each.path)}
    known = [*found, *(each.path for each in script.writes)]
    for path, where in script.machine_paths.items():
        if not any(inside(path, each) or inside(each, path) for each in known):
            found[path] = f"{where} names {path}"
    absent = [found[path] for path in found if not any(inside(path, each) for each in (*mounts, *IN_IMAGES))]
    reads = [f"{each}, which no volume of the pod has; {how}" for each in absent[:_MOST_SHOWN]]
    return [*reads, *(f"{each}, and no volume keeps that: it is deleted with the pod; {keep}" for each in lost)]


def visible_warnings(source: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that hides GPUs. Args: source: what sets it: ``-e``, ``job.yaml sets``."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if name in env:
            yield (
                f"{source} {name}={env[name]}: the device plugin gives each pod its own GPUs, and the variable can "
                "only hide them or show those of others; delete it"
            )
