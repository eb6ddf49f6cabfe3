"""Machine: what checks look at: the facts of this host, and what a container of it looks like from inside."""

from __future__ import annotations

from typing import Any

from seatrial.doctor.facts.host import HostFacts
from seatrial.doctor.facts.inspection import Inspection, InspectionRequest
from seatrial.system.host import Host


class Machine(HostFacts):
    """This host, and one image or container of it.

    Args:
        inspect: the image or container to look into. options: of HostFacts.
    """

    def __init__(self, host: Host | None = None, *, inspect: InspectionRequest | None = None, **options: Any) -> None:
        super().__init__(host, **options)
        self.inspection = Inspection(self, inspect or InspectionRequest())
