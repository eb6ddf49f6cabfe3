"""The start and the end of a run, as its record has them: adopted if need be, and judged once it has ended.

Any process may do this, at any time after the end: the command line that started the run, or a later ``seatrial runs``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

from seatrial.errors import SeatrialError
from seatrial.events import HostLaunched, TargetExited, TargetStarted
from seatrial.runs.run import Run
from seatrial.system.host import Host

if TYPE_CHECKING:  # what a run with a receipt does not need is imported where it is used
    from seatrial.backends.base import Backend, Handle, State
    from seatrial.job.plan import Plan
    from seatrial.receipt.model import Receipt

#: Lines of output requested from the engine: all.
_ALL = 2**31 - 1


def finalise(
    run: Run, host: Host, *, ended: State | None = None, judged: Callable[[Receipt], None] = lambda receipt: None
) -> Receipt | None:
    """Return the receipt of an ended run, made now unless it exists; None while the run lives.

    Args:
        ended: its last state, if the caller has just followed it to its end and collected all of it.
        judged: gets a receipt that is made now as soon as it is written; the container is removed after that.

    Raises:
        EngineUnavailableError: the engine does not answer, so nobody knows whether the run has ended.
    """
    from seatrial.receipt.store import load

    if not run.recorded:
        return load(run.folder)
    with run.lock("finalise"):
        if run.summary() is not None:
            return load(run.folder)
        from seatrial.runs.ending import end

        return end(run, host, ended=ended, judged=judged)


def handle_of(run: Run, host: Host) -> Handle | None:
    """Return a run's handle; None for one that never started. One that nobody wrote down is looked for by its label.

    Raises EngineUnavailableError: there is no handle, and the engine that would know does not answer.
    """
    handle = run.handle()
    if handle is not None or not run.recorded or run.ended or run.given_up or run.is_starting():
        return handle
    from seatrial.backends import table

    try:
        plan = run.plan()
    except SeatrialError:  # it got no further than its folder
        return None
    backend = table.backend(plan.backend, host, plan.engine)
    with run.lock("adopt"):
        handle = run.handle()
        if handle is None:
            handle = backend.find(run.id, run.folder)
            if handle is not None:
                record_start(run, plan, backend, handle, host)
    return handle


def record_start(run: Run, plan: Plan, backend: Backend, handle: Handle, host: Host) -> None:
    """Record that it runs: the handle first, by which everybody finds it."""
    from seatrial.images.build.size import image_bytes_of
    from seatrial.runs.leases import leases

    run.save_handle(handle)
    leases(host).bind(run.id, handle)
    if run.has(HostLaunched):
        return
    facts = backend.images.image(plan.image.tag) if backend.images and plan.image else None
    run.record(
        HostLaunched(
            backend=backend.name,
            host=platform.node(),
            handle=handle.id,
            image=plan.image.tag if plan.image else None,
            image_id=facts.id if facts else None,
            image_digest=facts.digest if facts else None,
            image_bytes=image_bytes_of(plan, backend.images, host),
        )
    )


# ------------------------------------------------- an image without Python: no agent writes what the target does


def record_target_start(run: Run, plan: Plan) -> None:
    """Record that the target has started: it is the container's own command."""
    run.record(TargetStarted(pid=None, argv=list(plan.agent.argv), launcher="none", framework=None))


def record_target_end(run: Run, backend: Backend, handle: Handle, state: State) -> None:
    """Record the target's output and its end as the engine has them, once.

    The engine does not distinguish a signal from an exit code above 128, which shells and engines both use for one.
    """
    if state.status != "exited" or run.has(TargetExited):
        return
    (run.folder / "stdout.log").write_text(backend.logs_tail(handle, _ALL))
    code = state.exit_code or 0
    number = code - 128 if code > 128 else None
    run.record(
        TargetExited(
            exit_code=None if number else code,
            signal=number,
            cause="signal" if number else "exited",
            seconds=state.seconds,
            max_rss_bytes=None,
            oom_kills=None,
        )
    )
