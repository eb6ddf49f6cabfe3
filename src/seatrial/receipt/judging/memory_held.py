"""--gpu-memory in a receipt: whether the target's frameworks were given the limit, and how near they came to it."""

from __future__ import annotations

from seatrial.diagnosis.anatomy import MEMORY
from seatrial.events import Step
from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.receipt.evidence.facts import Evidence
from seatrial.receipt.evidence.fields import mapping, number, text
from seatrial.receipt.model import GpuMemory

#: A framework as the plan and the hook name it → as its project writes it.
FRAMEWORKS = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}


def gpu_memory(evidence: Evidence, limit_bytes: int | None) -> GpuMemory | None:
    """From the lines of the hook, which the target could write, too; None without a limit."""
    if limit_bytes is None:
        return None
    lines = [line for moment in evidence.all(Step) if (line := mapping(moment.keys.get(MEMORY)))]
    lines = [line for line in lines if text(line.get("framework")) in FRAMEWORKS]  # of the hook
    names = [FRAMEWORKS[str(line["framework"])] for line in lines if line.get("limit_bytes") == limit_bytes]
    peaks = [
        peak
        for line in lines
        if isinstance(told := line.get("peak_bytes"), list)
        for each in told[:64]
        if (peak := number(each)) is not None and peak >= 0
    ]
    failed = [reason for line in lines if (reason := text(line.get("failed")))]
    return GpuMemory(
        limit_bytes=limit_bytes,
        frameworks=tuple(dict.fromkeys(names)),
        peak_bytes=int(max(peaks)) if peaks else None,
        failed=failed[0] if failed else None,
    )


def not_held_finding(memory: GpuMemory | None) -> Finding | None:
    """The finding where a framework could not be given the limit."""
    if memory is None or memory.failed is None:
        return None
    return by_id("gpu-memory-not-held").finding([memory.failed])
