"""Straight time: events.jsonl holds wall-clock times of three writers, and clocks are set, slept through and made up.

The order of one writer's lines is the truth, since it appends; the times fill it in. Between agent and host the time
decides: the host writes its lines at once, and an agent's when it collects them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.job.units import format_seconds
from seatrial.receipt.evidence.fields import number

#: A longer gap between two lines of the agent is a sleeping machine or a clock that was set, not run time: the
#: agent writes a sample every second, or every minute at the slowest.
MAX_GAP_S = 600.0

#: Threads and processes take the time before they write: lines this much out of order are no jump of the clock.
MAX_DISORDER_S = 2.0


def in_order(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The host's lines among the agent's by their time; a target, which may say any time, moves none."""
    host = [event for event in events if event.get("source") == "host" and number(event.get("t")) is not None]
    others = [event for event in events if not (event.get("source") == "host" and number(event.get("t")) is not None)]
    merged: list[dict[str, Any]] = []
    at = 0
    for event in others:
        t = number(event.get("t")) if event.get("source") == "agent" else None
        while t is not None and at < len(host) and (number(host[at]["t"]) or 0.0) <= t:
            merged.append(host[at])
            at += 1
        merged.append(event)
    return [*merged, *host[at:]]


def straighten(events: Sequence[dict[str, Any]]) -> tuple[list[float], list[str]]:
    """Seconds since the first line, one for each event, and a sentence for each jump of the clock.

    The agent's and the host's lines never run backwards here: a step back counts as no time, and so does a leap
    of more than MAX_GAP_S. A target may write its own idea of ``t``; it is used where it fits between the
    agent's lines. A line without a time happened when the line before it did.
    """
    elapsed: list[float] = []
    jumps: list[str] = []
    now_s, reference = 0.0, None
    for event in events:
        t, source = number(event.get("t")), event.get("source", "target")
        if t is None or (reference is None and source == "target"):
            elapsed.append(now_s)
            continue
        step_s = t - reference if reference is not None else 0.0
        jumped = not -MAX_DISORDER_S <= step_s <= MAX_GAP_S
        if jumped and source == "agent":
            jumps.append(_jump(step_s))
        at_s = now_s if jumped else now_s + max(0.0, step_s)
        elapsed.append(at_s)
        if source != "target" and (jumped or step_s >= 0 or reference is None):
            now_s, reference = at_s, t
    return elapsed, jumps


def _jump(step_s: float) -> str:
    direction = "back" if step_s < 0 else "forward"
    return f"The clock jumped {direction} by {format_seconds(abs(step_s))} during the run; that time is excluded"
