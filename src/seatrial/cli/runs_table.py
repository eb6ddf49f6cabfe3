"""The lines of runs ls: every column where there is room, else the most important ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.compose.listing import Listed
from seatrial.job.units import format_seconds
from seatrial.runs.listing import started_at

#: Columns of a terminal from which on every column is shown.
WIDE = 100

#: Values of ``--status``. ``unmet``: ended well, and criteria are not met.
STATUSES = ("starting", "waiting", "running", "done", "stopped", "failed", "unmet", "unknown")

_HEAD = ("RUN", "NAME", "TARGET", "ON", "GPUS", "AGE", "TIME", "STATUS")

#: Of the head, on a narrow terminal; a run's name is in place of its ID, which it is found by as well.
_NARROW = ("RUN", "TARGET", "AGE", "STATUS")

#: Below so many columns the status has room only beside the last part of an ID, by which a run is found as well.
NARROWEST = 60
_NARROWEST = ("RUN", "AGE", "STATUS")

#: What stands before the reason of a run that did not start: the row is of the run, and the reason is looked for.
_BEFORE_REASON = (
    (re.compile(r"^The run could not be started: "), "not started: "),
    (re.compile(r"^not started: Building \S+ failed(?: while [^:]+)?: "), "its image: "),
)


def table(listed: Sequence[Listed], width: int | None, now: float) -> list[str]:
    """A line each, below a head. By hand: rich needs a second for a thousand.

    Args:
        width: of the terminal, at whose edge lines end; None without one: nothing is left out.
    """
    several = len({each.line.engine for each in listed if each.line.engine}) > 1
    rows = [dict(zip(_HEAD, _row(each, now, engine=several), strict=True)) for each in listed]
    head: tuple[str, ...] = _HEAD
    if width is not None and width < WIDE:
        head = _NARROW if width >= NARROWEST else _NARROWEST
        part = slice(None) if head is _NARROW else slice(-4, None)
        rows = [{**row, "RUN": row["NAME"].strip() or row["RUN"][part]} for row in rows]
    lines = [head, *(tuple(row[column] for column in head) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return [line if width is None or len(line) <= width else line[: width - 1] + "…" for line in shown]


def matches(listed: Listed, statuses: Sequence[str], since_s: float | None, now: float) -> bool:
    """Whether it is one that was asked for.

    Args:
        since_s: started at most so long ago.
    """
    line = listed.line
    unmet = line.status == "done" and (line.headline or "").startswith("criteria not met")
    if statuses and line.status not in statuses and not (unmet and "unmet" in statuses):
        return False
    started = started_at(line.id)
    return since_s is None or (started is not None and now - started <= since_s)


def age(seconds: float) -> str:
    """``12s``, ``5m``, ``3h``, ``2d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def _reason(text: str) -> str:
    """Why, without what every such row would begin with."""
    for pattern, words in _BEFORE_REASON:
        text = pattern.sub(words, text)
    return text


def _row(listed: Listed, now: float, *, engine: bool) -> tuple[str, ...]:
    """A run, a group, or below it one of its members; with ``engine``, the engine that it is on."""
    line = listed.line
    told = {
        "done": line.headline or "done",
        "waiting": f"waiting: {line.outcome}" if line.outcome else "waiting",
        "stopped": line.outcome or "stopped",
        "failed": f"failed: {_reason(line.headline or line.outcome or '')}",
        "unknown": f"unknown: {line.outcome}",
        "unchanged": f"unchanged: {line.outcome}",
        "skipped": f"skipped: {line.outcome}",
    }
    status = told.get(line.status, line.status)
    status += f": {line.address}" if line.address else ""
    seconds = format_seconds(line.seconds) if line.seconds is not None else ""
    gpus = "?" if line.gpus is None else str(line.gpus)
    started = started_at(line.id)
    old = "" if started is None else age(now - started)
    run_id, name = (f"  {line.id}", f"  {listed.member}") if listed.member else (line.id, line.name or "")
    backend = f"{line.backend} {line.engine}" if engine and line.engine else line.backend
    return run_id, name, line.target, backend, gpus, old, seconds, status
