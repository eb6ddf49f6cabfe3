"""Is a run alive? Asked by leases, listings and finalisation, of the run's own backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from seatrial.backends import table
from seatrial.backends.base import Handle, State
from seatrial.errors import EngineUnavailableError, SeatrialError
from seatrial.runs.leases import Lease, Leases, default_folder


def state_of(handle: Handle, environ: Mapping[str, str]) -> State:
    """What its backend says. Raises EngineUnavailableError when the engine does not answer."""
    return table.backend(handle.backend, environ).state(handle)


def leases(environ: Mapping[str, str]) -> Leases:
    """The lease folder of this machine."""

    def is_live(handle: Handle) -> bool:
        try:
            return state_of(handle, environ).status in ("created", "running")
        except EngineUnavailableError:
            return True  # an engine that does not answer may still run it: a GPU is not given away on a guess

    def find(lease: Lease) -> Handle | None:
        """Its launcher was killed: between the engine's start and its own note, the run may be alive."""
        if lease.backend is None or lease.record is None:
            return None
        try:
            return table.backend(lease.backend, environ).find(lease.run_id, Path(lease.record))
        except (SeatrialError, OSError):
            return None

    return Leases(default_folder(environ), is_live, find)
