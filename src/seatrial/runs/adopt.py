"""Find the handle of a run that nobody wrote down, and record its start."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from seatrial.errors import SeatrialError
from seatrial.events import HostLaunched
from seatrial.runs.run import Run
from seatrial.system.host import Host

if TYPE_CHECKING:  # what a run with a receipt does not need is imported where it is used
    from seatrial.backends.base import Backend, Handle
    from seatrial.job.plan import Plan


def handle_of(run: Run, host: Host) -> Handle | None:
    """Return a run's handle; None for one that never started. One that nobody wrote down is looked for by its label.

    Raises EngineUnavailableError: no handle is written, and the engine that would know does not answer.
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
