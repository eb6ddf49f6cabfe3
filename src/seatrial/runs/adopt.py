"""Runs that were started and not written down, their launcher killed in between: found by what they carry."""

from __future__ import annotations

import platform

from seatrial.backends import table
from seatrial.backends.base import Backend, Handle
from seatrial.errors import SeatrialError
from seatrial.events import HostLaunched
from seatrial.images.build.size import image_bytes_of
from seatrial.job.plan import Plan
from seatrial.runs.liveness import leases
from seatrial.runs.run import Run
from seatrial.system.host import Host


def handle_of(run: Run, host: Host) -> Handle | None:
    """How to find a run in its backend, adopted now if need be; None for one that never started.

    Raises EngineUnavailableError: there is no handle, and the engine that would know does not answer.
    """
    handle = run.handle()
    if handle is not None or not run.recorded or run.ended or run.given_up or run.is_starting():
        return handle
    try:
        plan = run.plan()
    except SeatrialError:  # it came no further than its folder
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
    """Write down that it runs: the handle first, by which everybody finds it."""
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
