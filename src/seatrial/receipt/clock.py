"""Straight time: events.jsonl holds wall-clock times of three writers, and clocks are set, slept through and made up.

The order of the lines is the truth, since every writer appends; the times fill it in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.receipt.fields import number

#: A longer gap between two lines of the agent is a sleeping machine or a clock that was set, not run time: the
#: agent writes a sample every second, or every minute at the slowest.
MAX_GAP_S = 600.0


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
        t = number(event.get("t"))
        from_target = event.get("source", "target") == "target"
        if t is None or (reference is None and from_target):
            elapsed.append(now_s)
            continue
        step_s = t - reference if reference is not None else 0.0
        if not 0 <= step_s <= MAX_GAP_S:
            if event.get("source") == "agent":
                jumps.append(_jump(step_s))
            step_s = 0.0
        elapsed.append(now_s + step_s)
        if not from_target:
            now_s, reference = now_s + step_s, t
    return elapsed, jumps


def _jump(step_s: float) -> str:
    direction = "back" if step_s < 0 else "forward"
    return f"The clock jumped {direction} by {abs(step_s):.3g} s during the run; that time is left out"
