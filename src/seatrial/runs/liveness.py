"""Is a run alive? Asked by leases, listings and finalisation, of the run's own backend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import Handle, State
from seatrial.errors import EngineUnavailableError, SeatrialError
from seatrial.probe import proc
from seatrial.runs.leases import Lease, Leases, default_folder
from seatrial.system.state import state_folder

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


def state_of(handle: Handle, environ: Mapping[str, str]) -> State:
    """What its backend says. Raises EngineUnavailableError when the engine does not answer."""
    return table.backend(handle.backend, environ).state(handle)


def leases(environ: Mapping[str, str]) -> Leases:
    """The lease folder of this machine. Every user writes there, so nothing is done for a lease but look."""
    own_records = state_folder(environ) / "projects"

    def is_live(handle: Handle) -> bool:
        if table.place(handle.backend) == "process":
            process = proc.read(int(handle.id)) if handle.id.isdigit() else None
            return process is not None and str(process.started_ticks) == handle.started and process.state != "Z"
        if table.place(handle.backend) != "container" or not _CONTAINER_ID.fullmatch(handle.id):
            return False
        try:
            return state_of(handle, environ).is_live
        except EngineUnavailableError:
            return True  # an engine that does not answer may still run it: a GPU is not given away on a guess

    def find(lease: Lease) -> Handle | None:
        """Its launcher was killed: between the engine's start and its own note, the run may be alive.

        Asked of this user's own runs alone: what was made and never started is removed on the way.
        """
        record = Path(lease.record or "/")
        if lease.backend is None or table.place(lease.backend) in (None, "cluster"):
            return None
        if record.name != lease.run_id or ".." in record.parts:
            return None
        if not record.is_relative_to(own_records) or not record.is_dir():
            return None
        try:
            return table.backend(lease.backend, environ).find(lease.run_id, record)
        except (SeatrialError, OSError):
            return None

    return Leases(default_folder(environ), is_live, find)
