"""Which options which kind of place cannot honour: an option that would do nothing is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from seatrial.backends.base import PlaceKind
from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.plan import Gpu
from seatrial.job.script import ScriptFacts
from seatrial.job.units import format_bytes
from seatrial.planning.container.limits import gpu_memory_enforceable

#: Flag → its value in a job, and the kinds of places that have nothing to apply it to.
OPTIONS: Mapping[str, tuple[Callable[[Job], Any], frozenset[PlaceKind]]] = {
    "--mount": (lambda job: job.mounts, frozenset({"process", "cluster"})),
    "--publish": (lambda job: job.publish, frozenset({"process", "cluster"})),
    "--network": (lambda job: job.network, frozenset({"process", "cluster"})),
    "--device": (lambda job: job.devices, frozenset({"process", "cluster"})),
    "--ulimit": (lambda job: job.ulimits, frozenset({"process", "cluster"})),
    "--cpus": (lambda job: job.cpus, frozenset({"process"})),
    "--memory": (lambda job: job.memory_bytes, frozenset({"process"})),
    "--shm-size": (lambda job: job.shm_bytes, frozenset({"process"})),
    "--writable": (lambda job: job.writable, frozenset({"process"})),
    "--image": (lambda job: job.target.kind == "image", frozenset({"process"})),
}

#: Of a GPU's memory, what frameworks can be given: CUDA's own context takes about 0.5 GB of 80 (H200, 2026-11-22).
_USABLE = 0.95

#: Kind of place → what its refusal says behind the flags, and the next command.
_WHY: Mapping[PlaceKind, tuple[str, str]] = {
    "process": ("{needs} a container; the backend {name} has none", "seatrial run … --on docker"),
    "cluster": ("not on Kubernetes", "seatrial run … --on k8s --data pvc:NAME --models pvc:NAME"),
}


def refuse_options(job: Job, place: PlaceKind, name: str) -> None:
    """Raises UsageError for options that do nothing on a backend of this kind.

    Args:
        name: of the backend.
    """
    given = [flag for flag, (value, without) in OPTIONS.items() if place in without and value(job)]
    if given:
        words, run = _WHY[place]
        needs = "need" if len(given) > 1 else "needs"
        colon = "" if place == "process" else ":"
        raise UsageError(f"{', '.join(given)}{colon} {words.format(needs=needs, name=name)}", run=run)


def gpu_memory_limit(job: Job, script: ScriptFacts, gpus: tuple[Gpu, ...]) -> int | None:
    """Bytes of each GPU that the target may use, or None for all. Raises UsageError for what cannot be held."""
    limit = job.gpu_memory_bytes
    if limit is None and job.gpus.share and gpus and gpu_memory_enforceable(script.framework):
        return int(job.gpus.share * _USABLE * min(gpu.memory_bytes for gpu in gpus))
    if limit is None:
        return None
    if job.gpus.kind == "none":
        raise UsageError(
            "--gpu-memory limits nothing on a run without GPUs (--gpus none)",
            run="seatrial run …   # without --gpu-memory",
        )
    if not gpu_memory_enforceable(script.framework):
        raise UsageError(
            f"--gpu-memory cannot be enforced on this target: {script.framework or 'its source'} has no limit",
            cause="torch, TensorFlow and JAX support a limit; CUDA itself does not",
            run="seatrial run …   # without --gpu-memory",
        )
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes, default=None)
    if smallest is not None and limit > smallest.memory_bytes:
        has = format_bytes(smallest.memory_bytes)
        raise UsageError(
            f"--gpu-memory {format_bytes(limit)}: GPU {smallest.index} ({smallest.name}) has {has}",
            run="seatrial run …   # without --gpu-memory, which may then use all of it",
        )
    return limit
