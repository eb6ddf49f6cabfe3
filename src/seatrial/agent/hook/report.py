"""Append lines to $SEATRIAL_EVENTS, each with one key of ours that the agent passes on as it is."""

import json
import math
import os
import time
from typing import Any, Dict, List


def in_short(error: BaseException) -> str:
    """Return an error's most telling line: its first; the last of a worker's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    if lines[0].startswith("Caught ") and len(lines) > 1:
        return lines[-1][:200]
    return ("%s: %s" % (type(error).__name__, lines[0]))[:200]


#: This process's rank if RANK does not give it: ranks that a script has started itself.
_RANK: List[int] = []


def ranked(rank: int) -> None:
    """Record the process's rank in the group that it has joined."""
    _RANK[:] = [rank]


def write(key: str, value: Dict[str, Any]) -> None:
    """Append one line, whole or not at all. Nothing is raised: nobody waits for it."""
    _append({key: value})


def failure(key: str, error: BaseException) -> None:
    """Append one line with the reason of a failure of ours."""
    write(key, {"reason": ("%s: %s" % (type(error).__name__, error))[:300]})


def metrics(by: str, phase: str, epoch: int, values: Dict[str, Any]) -> None:
    """Append a framework's metrics of an epoch, 0 for none, like a script that reports its own: finite numbers."""
    numbers = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if math.isfinite(number):
            numbers[str(name)] = number
    if numbers:
        position = {"epoch": epoch} if epoch else {}
        _append(dict(numbers, **position, phase=phase, by=by))


def _append(values: Dict[str, Any]) -> None:
    path = os.environ.get("SEATRIAL_EVENTS")
    if not path:
        return
    line = dict(values, t=round(time.time(), 4))
    rank = os.environ.get("RANK", "")
    if rank.isdigit():
        line["rank"] = int(rank)
    elif _RANK:
        line["rank"] = _RANK[0]
    try:
        append_line(path, line)
    except (OSError, ValueError, TypeError):
        pass


def append_line(path: str, line: Dict[str, Any]) -> None:
    """Append an object to a file as one line of JSON, in one write. Raises OSError, or ValueError or TypeError."""
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
