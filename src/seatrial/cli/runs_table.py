"""The lines of ``runs ls``: every column where there is room, else the most important ones; and its filters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seatrial.cli.options import quoted
from seatrial.compose.listing import Listed
from seatrial.errors import UsageError
from seatrial.job.units import format_seconds
from seatrial.runs.listing import started_at
from seatrial.system.text import one_line

#: Columns of a terminal from which on every column is shown, and below which only the last part of an ID is, by which
#: a run is found as well.
WIDE, NARROWEST = 100, 60

#: Of a cell: every row is as wide as the widest.
_MOST_LETTERS = 4000

#: Values of ``--status``. ``unmet``: ended well, and criteria are not met.
STATUSES = ("starting", "waiting", "running", "done", "stopped", "failed", "unmet", "unknown")

_HEAD = ("RUN", "NAME", "TARGET", "ON", "GPUS", "AGE", "TIME", "STATUS")

#: Of the head, on a narrow terminal; a run's name is in place of its ID, and finds it as well.
_NARROW = ("RUN", "TARGET", "AGE", "STATUS")
_NARROWEST = ("RUN", "AGE", "STATUS")

#: Beginnings of messages that are cut: the row already names the run, and only the reason is new.
_BEFORE_REASON = (
    (re.compile(r"^The run could not be started: "), "not started: "),
    (re.compile(r"^not started: Building \S+ failed(?: while [^:]+)?: "), "its image: "),
)


def table(listed: Sequence[Listed], width: int | None, now: float) -> list[str]:
    """Return a line each, below a head. By hand: rich needs a second for a thousand.

    Args:
        width: of the terminal, where lines end; None without a terminal: nothing is left out.
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
    """Return True for a run with one of these statuses, started at most ``since_s`` seconds ago."""
    line = listed.line
    unmet = line.status == "done" and (line.headline or "").startswith("criteria not met")
    if statuses and line.status not in statuses and not (unmet and "unmet" in statuses):
        return False
    started = started_at(line.id)
    return since_s is None or (started is not None and now - started <= since_s)


def age(seconds: float) -> str:
    """Return ``12s``, ``5m``, ``3h``, ``2d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def _row(listed: Listed, now: float, *, engine: bool) -> tuple[str, ...]:
    """Return the row of a run, a group, or below it a member; ``engine``: with the engine that it is on."""
    line = listed.line
    reason = line.headline or line.outcome or ""
    for pattern, words in _BEFORE_REASON:
        reason = pattern.sub(words, reason)
    statuses = {
        "done": line.headline or "done",
        "waiting": f"waiting: {line.outcome}" if line.outcome else "waiting",
        "stopped": line.outcome or "stopped",
        "failed": f"failed: {reason}",
        "unknown": f"unknown: {line.outcome}",
        "unchanged": f"unchanged: {line.outcome}",
        "skipped": f"skipped: {line.outcome}",
    }
    status = statuses.get(line.status, line.status)
    status += f": {line.address}" if line.address else ""
    seconds = format_seconds(line.seconds) if line.seconds is not None else ""
    gpus = "?" if line.gpus is None else str(line.gpus)
    started = started_at(line.id)
    old = "" if started is None else age(now - started)
    run_id, name = (f"  {line.id}", f"  {listed.member}") if listed.member else (line.id, line.name or "")
    backend = f"{line.backend} {line.engine}" if engine and line.engine else line.backend
    cells = run_id, name, line.target, backend, gpus, old, seconds, status
    return tuple(one_line(cell[:_MOST_LETTERS]) for cell in cells)


def parse_statuses(text: str | None) -> tuple[str, ...]:
    """Read ``failed`` or ``failed,unmet``. Raises UsageError for an unknown one."""
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    if (text is not None and not words) or (strange := [word for word in words if word not in STATUSES]):
        wrong = quoted(strange[0] if words else text or "")
        raise UsageError(
            f"{wrong} is not a status: choose from {', '.join(STATUSES)}", run="seatrial runs ls --status failed"
        )
    return words


def parse_since(text: str) -> float:
    """Return the seconds of ``30m``, ``2h``, ``2d``, ``1w``. Raises UsageError."""
    from seatrial.job.units import parse_seconds

    if days := re.fullmatch(r"([0-9]{1,4})([dw])", text.strip()):
        return float(days[1]) * {"d": 86400, "w": 604800}[days[2]]
    try:
        return parse_seconds(text)
    except UsageError as error:
        raise UsageError(f"--since: {error.message}", run="seatrial runs ls --since 2d") from None
