"""The status of a run: its receipt, made once it has ended, and its line in ``runs ls``.

Any process may make the receipt after the end: the run's own command line, or a later ``seatrial runs``.
"""

from __future__ import annotations

import calendar
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from seatrial import events
from seatrial.errors import EngineUnavailableError, SeatrialError, UntrustedPathError, fallback
from seatrial.receipt.values import number
from seatrial.runs.run import Run, Summary, run_name
from seatrial.system.host import Host

if TYPE_CHECKING:  # what a run with a receipt does not need is imported where it is used
    from seatrial.backends.base import Handle, State
    from seatrial.receipt.model import Receipt

#: Bytes read of a live run's events: the start of its target is among the first.
_FIRST_BYTES = 1 << 20
#: Keys that a line shares with the summary that it is made from.
_SHARED = ("name", "target", "backend", "gpus", "outcome", "exit_code", "seconds", "headline", "engine", "metrics")

Status = Literal["starting", "waiting", "running", "done", "stopped", "failed", "unknown"]


def finalise(
    run: Run, host: Host, *, ended: State | None = None, judged: Callable[[Receipt], None] = lambda receipt: None
) -> Receipt | None:
    """Return the receipt of an ended run, made now unless it exists; None while the run lives.

    ``ended``: its last state, if the caller has just followed it to its end and collected all of it. ``judged``: gets a
    receipt made now, before the container is removed. Raises EngineUnavailableError if the engine does not answer.
    """
    with run.lock("finalise"):
        if run.ended:
            return receipt_of(run)
        from seatrial.runs.ending import end

        return end(run, host, ended=ended, judged=judged)


def receipt_of(run: Run) -> Receipt:
    """Return the receipt of an ended run. Raises SeatrialError: it is none, or not the one that was written."""
    from seatrial.receipt.model import JSON_NAME, MOST_BYTES, load

    receipt, summary = load(run.folder), run.summary()
    if summary is not None and summary.receipt not in (None, run.records.measure(JSON_NAME, max_bytes=MOST_BYTES)[1]):
        changed = f"{run.folder / JSON_NAME} was changed after it was written"
        raise UntrustedPathError(changed, run=f"seatrial runs verify {run.id}")
    return receipt


@dataclass(frozen=True)
class RunLine:
    """One run in a listing.

    Attributes:
        outcome: the exit cause in words, the reason why it waits, or why the status is unknown.
        headline: of its receipt, in a few words; None while it lives, and of runs of earlier versions.
        engine: its address, as its client reaches it. address: of a live server.
        gpus: their number; None if the plan cannot be read.
        seconds: of the target; while it lives, since it was started.
        metrics: the last value of each that the script reported or printed, once it has ended.
    """

    id: str
    name: str | None
    target: str
    backend: str
    gpus: int | None
    status: Status
    outcome: str
    exit_code: int | None = None
    seconds: float | None = None
    address: str | None = None
    headline: str | None = None
    engine: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@fallback(None, on=(ValueError, OverflowError))
def started_at(run_id: str) -> float | None:
    """Return when the ID was made, as Unix time; None if it is not an ID."""
    return calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S"))


def line_of(run: Run, host: Host) -> RunLine:
    """Return one run's line, also of one that cannot be read; finalise it if it has ended meanwhile."""
    try:
        if (summary := run.summary()) is None:
            finalise(run, host)
            summary = run.summary()
        if summary is not None:
            return RunLine(id=run.id, status=_status(summary), **{key: getattr(summary, key) for key in _SHARED})
        handle = run.handle()
        waiting = _waiting(handle, host) if handle else None
        status: Status = "starting" if handle is None else "waiting" if waiting else "running"
        return _live(run, status, waiting or "")
    except (SeatrialError, OSError) as error:
        with contextlib.suppress(SeatrialError):
            if isinstance(error, EngineUnavailableError):
                return _live(run, "unknown", error.message)
        return RunLine(run.id, run_name(run), "?", "?", None, "unknown", str(error))


def _live(run: Run, status: Status, outcome: str) -> RunLine:
    """Return the line of a run without a summary, from its plan, once it is made."""
    if not run.records.has("plan.json") and run.is_starting():
        return RunLine(run.id, run_name(run), "", "", None, status, "its plan is being made")
    plan = run.plan()
    seconds = None if status == "unknown" else _seconds_so_far(run)
    address = plan.job.serve.url if plan.job.serve is not None and status == "running" else None
    planned = (run.id, run_name(run), plan.shown_target, plan.backend, plan.gpus_asked)
    return RunLine(*planned, status, outcome, seconds=seconds, address=address, engine=plan.engine_endpoint)


def _waiting(handle: Handle, host: Host) -> str | None:
    """Return why a run on a cluster waits; None if it does not, and elsewhere, where nothing waits."""
    from seatrial.backends import table  # with the plan's models, which a list of ended runs needs not
    from seatrial.runs.leases import state_of

    return state_of(handle, host).waiting if table.is_elsewhere(handle.backend) else None


def _seconds_so_far(run: Run) -> float | None:
    """Return the seconds since the target was started by its agent's clock; None before."""
    started = events.mark(events.TargetStarted)
    for line in events.Lines(str(run.events_path)).new(_FIRST_BYTES):
        if started in line and (event := events.parse(line)) is not None:
            at = number(event.get("t"))
            return None if at is None else max(0.0, time.time() - at)
    return None


def _status(summary: Summary) -> Status:
    """Return stopped, done or failed; a stopped run is neither of the others, however its target took the signal."""
    if summary.cause == "stopped":
        return "stopped"
    return "done" if summary.exit_code == 0 else "failed"
