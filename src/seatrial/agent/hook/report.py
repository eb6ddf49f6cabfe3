"""What the hook tells: lines of $SEATRIAL_EVENTS, each with one key of ours that the agent passes on as it is."""

import json
import os
import time
from typing import Any, Dict, List

#: Of this process, where RANK does not say it: ranks that a script has started itself.
_RANK: List[int] = []


def ranked(rank: int) -> None:
    """The process has joined a group."""
    _RANK[:] = [rank]


def write(key: str, value: Dict[str, Any]) -> None:
    """Append one line, whole or not at all. Nothing is raised: nobody waits for it."""
    path = os.environ.get("SEATRIAL_EVENTS")
    if not path:
        return
    line = {"t": round(time.time(), 4), key: value}
    rank = os.environ.get("RANK", "")
    if rank.isdigit():
        line["rank"] = int(rank)
    elif _RANK:
        line["rank"] = _RANK[0]
    try:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except (OSError, ValueError, TypeError):
        pass
