"""The catalogue of known failures, one literal table a layer. To add one: an entry in its layer's file."""

from typing import Dict, Tuple

from seatrial.findings.container import CONTAINER
from seatrial.findings.doctor import DOCTOR
from seatrial.findings.engine import ENGINE
from seatrial.findings.framework import FRAMEWORK
from seatrial.findings.host import HOST
from seatrial.findings.known import Known
from seatrial.findings.kubernetes import KUBERNETES
from seatrial.findings.running import RUNNING

#: Layer → its entries. A line is the first entry's whose symptom it shows: frameworks come last, since their most
#: general entries ("CUDA error:") stand at the end.
LAYERS: Dict[str, Tuple[Known, ...]] = {
    "host": HOST,
    "engine": ENGINE,
    "container": CONTAINER,
    "kubernetes": KUBERNETES,
    "running": RUNNING,
    "framework": FRAMEWORK,
    "doctor": DOCTOR,
}

CATALOGUE: Tuple[Known, ...] = tuple(entry for entries in LAYERS.values() for entry in entries)

_BY_ID = {entry.id: entry for entry in CATALOGUE}


def by_id(id: str) -> Known:
    """The entry of this ID. Raises KeyError."""
    return _BY_ID[id]
