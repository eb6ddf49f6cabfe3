"""Is a run alive? Asked by leases, listings and finalisation, of the run's own backend."""

from __future__ import annotations

import os
import re
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import Backend, Handle, State
from seatrial.errors import EngineUnavailableError, SeatrialError
from seatrial.job.plan import EngineAddress
from seatrial.probe import processes
from seatrial.runs.leases import Lease, Leases, default_folder
from seatrial.system.host import Host

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


def backend_of(handle: Handle, host: Host) -> Backend:
    """What steers a started run: its backend, on the engine where it was started."""
    return table.backend(handle.backend, host, handle.engine)


def state_of(handle: Handle, host: Host) -> State:
    """What its own engine says. Raises EngineUnavailableError when that does not answer."""
    return backend_of(handle, host).state(handle)


def leases(host: Host) -> Leases:
    """The lease folder of this machine. Every user writes there, so nothing is done for a lease but look."""
    own_records = host.state_folder / "projects"

    def is_live(handle: Handle) -> bool:
        traits = table.traits(handle.backend)
        if traits is None or not traits.on_this_host:
            return False
        if not traits.isolates:
            process = processes.read(int(handle.id)) if handle.id.isdigit() else None
            return process is not None and str(process.started_ticks) == handle.started and process.state != "Z"
        if not _CONTAINER_ID.fullmatch(handle.id):
            return False
        if handle.engine is not None and not _may_be_asked(handle.engine):
            return True
        try:
            return state_of(handle, host).is_live
        except EngineUnavailableError:
            return True  # an engine that does not answer may still run it: a GPU is not given away on a guess

    def find(lease: Lease) -> Handle | None:
        """Its launcher was killed: between the engine's start and its own note, the run may be alive.

        Asked of this user's own runs alone: what was made and never started is removed on the way.
        """
        record = Path(lease.record or "/")
        traits = None if lease.backend is None else table.traits(lease.backend)
        if lease.backend is None or traits is None or not traits.on_this_host:
            return None
        if record.name != lease.run_id or ".." in record.parts:
            return None
        if not record.is_relative_to(own_records) or not record.is_dir():
            return None
        if traits.isolates and lease.engine is not None and not _may_be_asked(lease.engine):
            raise EngineUnavailableError(f"Engine at {lease.engine.endpoint} is not asked for a lease")
        try:
            return table.backend(lease.backend, host, lease.engine).find(lease.run_id, record)
        except EngineUnavailableError:
            raise
        except (SeatrialError, OSError):
            return None

    return Leases(default_folder(host), is_live, find)


def _may_be_asked(engine: EngineAddress) -> bool:
    """Anybody can write a lease: only a Podman store or a socket of this user's or root's is looked at for one."""
    scheme, _, path = engine.endpoint.partition("://")
    if not path:
        return scheme.startswith("/")
    try:
        return scheme == "unix" and Path(path).stat().st_uid in (0, os.getuid())
    except OSError:
        return False
