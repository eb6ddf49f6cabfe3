"""What a pod's agent tells twice: lines of its summary stand in for those that a cut log has lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.events import EVIDENCE_TYPES, AgentFinished, AgentSummary
from seatrial.receipt.evidence.fields import items, number, whole


def with_repeated(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, and those that only a summary has, in front of what is left of the same agent.

    A line is known by its number and its time: another pod counts from 1 again, and an agent that has tried again
    repeats what it had told at the end of its first try.
    """
    at_front: dict[int, list[dict[str, Any]]] = {}
    begins: dict[float | None, int] = {}  # node → its agent's first line
    seen: dict[float | None, set[tuple[int | None, float | None]]] = {}
    for at, event in enumerate(events):
        node, seq = number(event.get("node")), whole(event.get("_seq"))
        if seq is None:
            continue
        begins.setdefault(node, at)
        known = seen.setdefault(node, set())
        known.add(_mark(event))
        if event.get("source") != "agent":
            continue
        if event.get("type") == AgentSummary.type:
            told = [one for one in map(_told, items(event.get("events"))) if one]
            lost = [one for one in told if _mark(one) not in known]
            known.update(map(_mark, lost))
            own = {} if "node" not in event else {"node": event["node"]}
            front = at_front.setdefault(begins[node], [])
            front += [{**one, **own} for one in sorted(lost, key=lambda one: int(one["_seq"]))]
        if event.get("type") == AgentFinished.type:  # what follows is another pod's, or another try
            del begins[node]
    return [one for at, event in enumerate(events) for one in (*at_front.get(at, ()), event)]


def _mark(event: dict[str, Any]) -> tuple[int | None, float | None]:
    return whole(event.get("_seq")), number(event.get("t"))


def _told(one: Any) -> dict[str, Any] | None:
    """A line of a summary as the agent's, or None where it is none."""
    if not isinstance(one, dict) or whole(one.get("_seq")) is None:
        return None
    if not isinstance(one.get("type"), str) or one["type"] not in EVIDENCE_TYPES:
        return None
    return {**one, "source": "agent"}
