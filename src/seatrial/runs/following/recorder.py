"""The recorder: a process that follows a run which nobody follows, so that its evidence is here while it goes on.

It is a convenience. Without one, or after a kill, the engine keeps the log, and whoever asks for the run next collects.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from seatrial.backends import table
from seatrial.backends.log_sink import Turn
from seatrial.errors import SeatrialError
from seatrial.runs.following.watch import follow
from seatrial.runs.run import Run
from seatrial.system.command import spawn_detached

#: The agent's last line tells the end at once; the engine is asked this seldom, for runs whose agent was killed.
STATE_INTERVAL_S = 10.0
LOG_INTERVAL_S = 1.0


def ensure(run: Run) -> None:
    """Start a recorder for a live run of an engine of this machine that nobody collects; it outlives this process."""
    handle = None if run.ended else run.handle()
    if handle is None or not handle.framed or table.is_elsewhere(handle.backend):
        return
    try:
        turn = Turn(run.folder)
        free = turn.take()
        turn.give_back()
        if free:
            project = str(run.place.parents[2])
            argv = [sys.executable, "-m", "seatrial", "runs", "record", run.id, "--project", project]
            # There, because ``-m`` imports from the current folder first, and the project may hold a json.py.
            spawn_detached(argv, output=run.folder / "recorder.log", cwd=run.folder)
    except (OSError, SeatrialError):  # a convenience
        pass


def record(run: Run, environ: Mapping[str, str]) -> None:
    """Follow a run to its end, and make its receipt."""
    from seatrial.runs.finalise import finalise  # run --detach starts a recorder, and judges nothing itself

    follow(
        run,
        lambda stream, data: None,
        environ,
        state_interval_s=STATE_INTERVAL_S,
        log_interval_s=LOG_INTERVAL_S,
    )
    finalise(run, environ)
