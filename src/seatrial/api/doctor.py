"""The GPU-container chain, examined from Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seatrial.doctor import report
from seatrial.doctor.examine import CHAIN, HOST, Result, examine, with_third_party
from seatrial.doctor.inspection import InspectionRequest
from seatrial.doctor.machine import Machine
from seatrial.system.host import Host


@dataclass(frozen=True)
class Examination:
    """What doctor saw.

    Attributes:
        results: check by check, in the chain's order: ``check``, ``verdict``, ``seconds``, ``blocked_by``.
    """

    results: tuple[Result, ...]
    _full: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0 ok, 1 warnings, 2 broken."""
        return report.exit_code(self.results)

    @property
    def first_broken(self) -> Result | None:
        """The first broken link; the first of its ``verdict.findings`` has the ``fix``."""
        return next((result for result in self.results if result.verdict.status == "broken"), None)

    def to_dict(self) -> dict[str, Any]:
        """What ``seatrial doctor --json`` prints."""
        return report.to_dict(self.results)

    def markdown(self) -> str:
        """What ``seatrial doctor --report`` prints: to paste, without names and secrets."""
        return report.markdown(self._full)

    def _repr_markdown_(self) -> str:
        return self.markdown()


def doctor(
    *, on: str = "auto", image: str | None = None, container: str | None = None, host_only: bool = False
) -> Examination:
    """Examine the whole GPU-container chain.

    Args:
        on: auto, docker, podman or local.
        image, container: inspect this image, or this container that is running.
        host_only: no container; under 1.5 s.
    """
    machine = Machine(Host(), on=on, inspect=InspectionRequest(image=image, container=container))
    chain = with_third_party([layer for layer in CHAIN if not host_only or layer.name in HOST])
    results = examine(machine, chain)
    return Examination(tuple(results), report.full(results, machine))
