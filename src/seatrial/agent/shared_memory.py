"""Shared memory at the moment the target ends: a bus error, or a bare "No space left on device", does not name it."""

from typing import Optional

from seatrial.findings.catalogue import by_id
from seatrial.findings.finding import Finding
from seatrial.probe import shm

#: A write that finds no room fills what is left first, to the page; other ends leave more than this.
_FULL = 0.95


def exhausted() -> Optional[Finding]:
    """The finding when /dev/shm is full now, else None. Ask before what the target left behind is cleaned up."""
    memory = shm.read()
    if memory is None or memory.used_bytes < _FULL * memory.total_bytes:
        return None
    used = "/dev/shm had %d of %d bytes in use when the target ended" % (memory.used_bytes, memory.total_bytes)
    return by_id("shared-memory-too-small").finding([used])
