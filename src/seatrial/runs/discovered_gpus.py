"""GPUs that nobody could name beforehand: a scheduler picks them, and the agents tell which they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial import events
from seatrial.job.plan import Gpu, Plan


def with_discovered_gpus(plan: Plan, evidence: list[dict[str, Any]]) -> Plan:
    """The plan with the GPUs that its agents took; unchanged where it named them itself."""
    if plan.agent.gpu_count is None:
        return plan
    found: dict[str, Gpu] = {}
    for check in events.of_type(evidence, events.GpuCheck):
        for gpu in _taken(check, plan.agent.gpu_count):
            found.setdefault(gpu.uuid, gpu)
    gpus = tuple(found.values())
    return plan.model_copy(update={"gpus": gpus, "agent": plan.agent._replace(gpus=gpus)})


def _taken(check: dict[str, Any], count: int) -> Sequence[Gpu]:
    """Of one node's check, the first ``count``: the agent hides any others."""
    return [
        Gpu(
            index=int(entry.get("index") or 0),
            uuid=str(entry["uuid"]),
            name=str(entry.get("name") or "GPU"),
            memory_bytes=int(entry.get("memory_bytes") or 0),
            compute_capability=entry.get("compute_capability"),
        )
        for entry in (check.get("visible") or [])[:count]
        if isinstance(entry, dict) and entry.get("uuid")
    ]
