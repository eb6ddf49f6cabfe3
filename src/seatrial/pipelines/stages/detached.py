"""seatrial up --detach: the same command in a session of its own, once its group is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from seatrial.errors import EngineError
from seatrial.pipelines.group import Group, GroupStore
from seatrial.pipelines.request import UpRequest
from seatrial.pipelines.stages.record import StageRecords
from seatrial.probe import proc
from seatrial.system.command import spawn_detached
from seatrial.system.typed_path import as_typed

#: How long it may take to make its group; it reads inputs whose digests are not known yet.
_PATIENCE_S = 600.0


def start_detached(request: UpRequest, groups: GroupStore, records: StageRecords, environ: Mapping[str, str]) -> Group:
    """Start it; its group. Raises EngineError: it ended before it had one."""
    argv = [sys.executable, "-m", "seatrial", "up", *request.names, "--stages", "--project", str(request.project)]
    for flag, value in (("--gpus", request.gpus), ("--on", request.backend), ("--name", request.name)):
        argv += [flag, value] if value is not None else []
    argv += [word for told in request.notify for word in ("--notify", told)]
    argv += ["--force"] if request.force else []
    log = records.root / "up.log"
    log.write_bytes(b"")
    pid = spawn_detached(argv, output=log, env=dict(environ))
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        for group in groups.all()[-3:]:
            if group.launcher is not None and group.launcher[0] == pid:
                return group
        process = proc.read(pid)
        if process is None or process.state == "Z":
            break
        time.sleep(0.1)
    told = log.read_text(errors="replace").strip().splitlines()
    raise EngineError(
        f"seatrial up did not start: {told[0] if told else 'it said nothing'}", run=f"cat {as_typed(log)}; seatrial up"
    )
