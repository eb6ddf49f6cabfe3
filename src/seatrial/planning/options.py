"""Refuse options that would do nothing on a backend or a target."""

from __future__ import annotations

from seatrial.backends.base import Traits
from seatrial.errors import UsageError
from seatrial.job.flags import FLAGS
from seatrial.job.keys import typed_keys
from seatrial.job.model import Job
from seatrial.job.plan import Gpu
from seatrial.job.script import ScriptFacts
from seatrial.job.units import format_bytes
from seatrial.planning.container.limits import gpu_memory_enforceable

#: Of a GPU's memory, what frameworks can be given: CUDA's own context takes about 0.5 GB of 80 (H200, 2026-11-22).
_USABLE = 0.95


def refuse_options(job: Job, traits: Traits, name: str) -> None:
    """Raise UsageError for options that this backend does not honour.

    Args:
        name: of the backend.
    """
    fields = {**typed_keys(Job), "image.ready": ""}
    needy = [flag for flag in FLAGS if flag.needs and flag.needs not in traits.honours]
    given = [flag.name for flag in needy if getattr(job, fields[flag.key], job.target.kind == "image")]
    if given:
        words, run = traits.refusal
        needs = "need" if len(given) > 1 else "needs"
        raise UsageError(words.format(flags=", ".join(given), needs=needs, name=name), run=run)


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
