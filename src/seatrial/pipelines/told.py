"""Who is told that an ``up`` has ended: once for all of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seatrial.job.loading import read_notify
from seatrial.job.notify import Notify
from seatrial.pipelines.request import Front, UpRequest
from seatrial.runs.notify import keep_request
from seatrial.system.desktop import nothing_to_show_on


def request_notify(request: UpRequest, folder: Path, front: Front, environ: Mapping[str, str]) -> Notify:
    """Remember it in the group's record. What the file asks for has been allowed. Raises ConfigError, DiskError."""
    told, _ = read_notify(request.project, request.notify)
    for warning in nothing_to_show_on(told.desktop, environ):
        front.say(f"warning: {warning}")
    if told.asked:
        keep_request(folder, request.project, told)
    return told
