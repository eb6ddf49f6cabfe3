"""Straight time: events.jsonl holds wall-clock times of several writers, and clocks are set, slept through and made up.

Each writer, an origin, has a clock of its own: the host, and every start of an agent (a pod that takes another's place
may be on another machine). The order of one origin's lines is the truth, since it appends; its times fill it in. They
are compared with each other, and never with another origin's: that a host collected a pod's lines a minute late, or
that two nodes' clocks differ, does not count as a jump. Between origins, the order of causes sets a clock right: a run
is launched before its agents start, and an agent has started when the host sees its pod run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.events import EVIDENCE_TYPES, AgentFinished, AgentStarted, AgentSummary, HostLaunched, HostPod
from seatrial.job.units import format_seconds
from seatrial.receipt.values import grouped, items, number, whole

#: A longer gap between two lines of the agent is a sleeping machine or a clock that was set, not run time: the
#: agent writes a sample every second, or every minute at the slowest.
MAX_GAP_S = 600.0
#: Threads and processes take the time before they write: lines this much out of order do not count as a jump.
MAX_DISORDER_S = 2.0

_HOST = "host"
Event = Mapping[str, Any]
#: A node and the number of its agent's start.
Origin = tuple[float | None, int]
_THE_HOST: Origin = (None, -1)


def on_one_clock(events: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[float], list[str]]:
    """Return the lines in order, seconds since the first for each, and a sentence for each jump of an agent's clock.

    The lines of all origins are ordered by their times, and those of one as they were written. A target, which may
    write any time, moves none: its lines stay behind the agent's before them.
    """
    launched, running = _seen_by_host(events)
    starts: dict[float | None, int] = {}  # node → starts of its agent so far
    skews: dict[Origin, float] = {}  # origin → seconds to add to its times
    ended: dict[Origin, float] = {}  # origin → time of its last line
    latest: dict[Origin, float] = {}
    origins: list[Origin] = []
    places: list[tuple[float, bool, int]] = []
    for at, event in enumerate(events):
        source, node, t = event.get("source", "target"), number(event.get("node")), number(event.get("t"))
        begins = source == "agent" and event.get("type") == AgentStarted.type
        starts[node] = starts.get(node, 0) + begins
        origin = _THE_HOST if source == _HOST else (node, starts[node])
        if t is not None and launched is not None and begins:
            pods = running.get(node or 0.0, [])[starts[node] - 1 :]
            before = max(launched, ended.get((node, starts[node] - 1), launched))
            if t < before:  # by another clock, or the host looked later
                skews[origin] = before - t
            elif pods and t > pods[0] + MAX_DISORDER_S:
                skews[origin] = pods[0] - t
        due = latest.get(origin, float("-inf"))
        if t is not None and source != "target":
            due = max(due, t + skews.get(origin, 0.0))
            if source == "agent" and not begins:
                ended[origin] = t + skews.get(origin, 0.0)
        latest[origin] = due
        origins.append(origin)
        places.append((due, origin != _THE_HOST, at))
    order = [at for _, _, at in sorted(places)]
    ordered = [events[at] for at in order]
    return (ordered, *_straightened(ordered, [origins[at] for at in order], skews))


def _seen_by_host(events: Sequence[Event]) -> tuple[float | None, dict[float, list[float]]]:
    """Return when the host launched the run, and node → when it saw each of its pods run."""
    times = [(each, t) for each in events if each.get("source") == _HOST and (t := number(each.get("t"))) is not None]
    launched = next((t for event, t in times if event.get("type") == HostLaunched.type), None)
    pods = ((number(event.get("node")) or 0.0, t) for event, t in times if event.get("type") == HostPod.type)
    return launched, grouped(pods)


def _straightened(
    events: Sequence[Event], origins: Sequence[Origin], skews: Mapping[Origin, float]
) -> tuple[list[float], list[str]]:
    """Return seconds since the first line for each event, and a sentence for each jump of an agent's clock.

    Lines of one origin never run backwards here: a step back counts as no time, and so does a leap of more than
    MAX_GAP_S. A target may write its own idea of ``t``; it is used where it fits between the agent's lines. A line
    without a time happened when the line before it did.
    """
    elapsed: list[float] = []
    jumps: list[str] = []
    seen: dict[Origin, tuple[float, float]] = {}  # origin → time and seconds of its last line
    last: tuple[float, float] | None = None
    for event, origin in zip(events, origins, strict=True):
        source, t = event.get("source", "target"), number(event.get("t"))
        known = seen.get(origin, last)
        if t is None or (known is None and source == "target"):
            elapsed.append(known[1] if known else 0.0)
            continue
        t += skews.get(origin, 0.0)
        if known is None:
            known = (t, 0.0)
        step_s = t - known[0]
        waited = source == "agent" and origin not in seen and step_s > MAX_GAP_S  # for a place on a cluster
        jumped = not -MAX_DISORDER_S <= step_s <= MAX_GAP_S and not waited
        if jumped and source == "agent" and origin in seen:
            jump = f"{'back' if step_s < 0 else 'forward'} by {format_seconds(abs(step_s))}"
            jumps.append(f"The clock jumped {jump} during the run; that time is excluded")
        at_s = known[1] if jumped else known[1] + max(0.0, step_s)
        if jumped and origin == _THE_HOST and last is not None:
            at_s = max(at_s, last[1])  # collected the day after: behind what it has collected
        elapsed.append(at_s)
        if source != "target" and (jumped or step_s >= 0 or origin not in seen):
            seen[origin] = last = (t, at_s)
    return elapsed, jumps


def with_repeated(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with lines that only a pod's summary still has, in front of the rest of the same agent.

    Kubelets cut the beginnings of logs, so a pod's agent repeats what matters at its end. A line is known by its number
    and its time: another pod counts from 1 again, and an agent that has tried again repeats its first try.
    """
    if not any(event.get("type") == AgentSummary.type for event in lines):
        return list(lines)
    at_front: dict[int, list[dict[str, Any]]] = {}
    begins: dict[float | None, int] = {}  # node → its agent's first line
    seen: dict[float | None, set[tuple[int | None, float | None]]] = {}
    for at, event in enumerate(lines):
        node, seq = number(event.get("node")), whole(event.get("_seq"))
        if seq is None:
            continue
        begins.setdefault(node, at)
        known = seen.setdefault(node, set())
        known.add(_mark(event))
        if event.get("source") != "agent":
            continue
        if event.get("type") == AgentSummary.type:
            repeated = [{**line, "source": "agent"} for line in items(event.get("events")) if _is_agents(line)]
            lost = [line for line in repeated if _mark(line) not in known]
            known.update(map(_mark, lost))
            own = {} if "node" not in event else {"node": event["node"]}
            front = at_front.setdefault(begins[node], [])
            front += [{**line, **own} for line in sorted(lost, key=lambda line: int(line["_seq"]))]
        if event.get("type") == AgentFinished.type:  # the lines that follow are another pod's, or another try
            del begins[node]
    return [line for at, event in enumerate(lines) for line in (*at_front.get(at, ()), event)]


def _mark(event: dict[str, Any]) -> tuple[int | None, float | None]:
    return whole(event.get("_seq")), number(event.get("t"))


def _is_agents(line: Any) -> bool:
    """Return whether a line of a summary can be the agent's."""
    known = isinstance(line, dict) and whole(line.get("_seq")) is not None and isinstance(line.get("type"), str)
    return known and line["type"] in EVIDENCE_TYPES
