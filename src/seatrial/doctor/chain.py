"""The chain, from the PCI bus to the cluster: every layer and its checks, in the order in which a GPU needs them.

To add a check: a row in its family's file. Other packages add theirs through the entry point group
``seatrial.checks`` (a Check, or a sequence of them); they stand behind ours and replace none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from seatrial.doctor.check import Check, Verdict, found
from seatrial.doctor.checks.cdi import CDI
from seatrial.doctor.checks.container import CONTAINER
from seatrial.doctor.checks.driver import DRIVER
from seatrial.doctor.checks.engine import ENGINE
from seatrial.doctor.checks.framework import FRAMEWORK
from seatrial.doctor.checks.hardware import HARDWARE
from seatrial.doctor.checks.image import IMAGE
from seatrial.doctor.checks.kubernetes import KUBERNETES
from seatrial.doctor.checks.toolkit import TOOLKIT
from seatrial.doctor.checks.userspace import USERSPACE
from seatrial.doctor.facts.machine import Machine

ENTRY_POINTS = "seatrial.checks"


@dataclass(frozen=True)
class Layer:
    name: str
    title: str
    checks: tuple[Check, ...]


CHAIN = (
    Layer("hardware", "Hardware", HARDWARE),
    Layer("driver", "Kernel driver", DRIVER),
    Layer("userspace", "User-space driver", USERSPACE),
    Layer("engine", "Container engine", ENGINE),
    Layer("toolkit", "Container toolkit", TOOLKIT),
    Layer("cdi", "CDI", CDI),
    Layer("image", "Image", IMAGE),
    Layer("container", "Container", CONTAINER),
    Layer("framework", "Framework", FRAMEWORK),
    Layer("kubernetes", "Kubernetes", KUBERNETES),
)

#: Layers that need no container: what `seatrial run` asks when a contract is broken, in under 1.5 s.
HOST = ("hardware", "driver", "userspace", "engine", "toolkit", "cdi")

#: What a process of this machine needs to reach a GPU.
PROCESS = ("hardware", "driver", "userspace")


def with_third_party(chain: Sequence[Layer] = CHAIN) -> tuple[Layer, ...]:
    """The chain and, behind it, what other packages add. One that cannot be loaded is a finding, not a silence."""
    ours = {check.id for layer in chain for check in layer.checks}
    added: list[Check] = []
    for entry in entry_points(group=ENTRY_POINTS):
        added.extend(_load(entry, ours))
    extra = (Layer("other", "Other checks", tuple(added)),) if added else ()
    return (*chain, *extra)


def _load(entry: EntryPoint, taken: set[str]) -> list[Check]:
    name = f"other.{entry.name}"
    try:
        loaded = entry.load()
        checks = [loaded] if isinstance(loaded, Check) else list(loaded)
        wrong = [check for check in checks if not isinstance(check, Check) or check.id in taken]
        if wrong:
            raise TypeError(f"{wrong[0]!r:.80} is not a Check with a unique ID")
    except Exception as error:  # noqa: BLE001  whatever another package raises is its own finding
        return [_broken(name, entry, f"{type(error).__name__}: {error}")]
    taken |= {check.id for check in checks}
    return checks


def _broken(id: str, entry: EntryPoint, reason: str) -> Check:
    evidence = [f"entry point {entry.group}: {entry.name} = {entry.value}", reason]

    def look(machine: Machine) -> Verdict:
        return found("check-not-loadable", evidence)

    return Check(id, f"Checks of {entry.name} load", ("check-not-loadable",), look)
