"""What Docker and Podman say of a container, as a State."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from seatrial.backends.base import State, Status

#: What engines call a container's state.
#: Source: moby api/types/container/state.go; podman libpod/define/containerstate.go.
STATUSES: dict[str, Status] = {
    "created": "created",
    "configured": "created",
    "initialized": "created",
    "running": "running",
    "paused": "running",
    "restarting": "running",
    "stopping": "running",
    "stopped": "exited",
    "exited": "exited",
    "removing": "exited",
    "dead": "exited",
}


def container_state(inspected: dict[str, Any]) -> State:
    """One entry of ``container inspect``. Engines print exit code 0 for a container that has not ended."""
    state = inspected["State"]
    status = STATUSES.get(state["Status"].lower(), "running")
    return State(
        status,
        exit_code=state.get("ExitCode") if status == "exited" else None,
        oom_killed=bool(state.get("OOMKilled")),
        error=state.get("Error") or None,
        seconds=_seconds(state["StartedAt"], state["FinishedAt"])
        if "FinishedAt" in state and status == "exited"
        else None,
    )


def _seconds(started_at: str, finished_at: str) -> float:
    """Between two times as engines print them: RFC 3339 with nanoseconds, which Python 3.10 does not read."""
    begin, end = (
        datetime.fromisoformat(
            re.sub(r"(\.\d{1,6})\d*", lambda part: part[1].ljust(7, "0"), time).replace("Z", "+00:00")
        )
        for time in (started_at, finished_at)
    )
    return max(0.0, (end - begin).total_seconds())
