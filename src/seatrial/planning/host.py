"""Facts of this machine and user that planning needs, read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from seatrial.job.plan import Gpu
from seatrial.probe import driver_files, nvml
from seatrial.probe.driver_files import DriverFiles
from seatrial.probe.nvml import Inventory
from seatrial.stack.machine import Machine, this_machine
from seatrial.system import checkout
from seatrial.system.host import Host


class HostFacts(Host):
    """This host with its GPUs as they are now.

    Attributes:
        find_driver: looks for the driver's files.
    """

    find_driver: Callable[[], DriverFiles] = staticmethod(driver_files.find)

    @cached_property
    def inventory(self) -> Inventory:
        return nvml.inventory()

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that NVML lists, in PCI order; () with the reason in ``inventory.error`` if there are none."""
        return tuple(Gpu.model_validate(gpu, from_attributes=True) for gpu in self.inventory.gpus)

    @cached_property
    def driver(self) -> DriverFiles:
        """The driver's files; looked for where GPUs of this machine go into a container, and nowhere else."""
        return self.find_driver()

    def load(self) -> dict[str, float]:
        """GPU UUID → how busy it is, for picking the idlest: utilisation plus share of memory in use, 0 to 2."""
        return {
            gpu.uuid: (gpu.utilization_pct or 0) / 100 + (gpu.memory_used_bytes or 0) / max(1, gpu.memory_bytes)
            for gpu in self.inventory.gpus
        }

    def machine(self, gpus: Sequence[Gpu] | None = None) -> Machine:
        """Driver and GPUs for the resolver: of these GPUs, or of all that are here."""
        chosen = self.gpus if gpus is None else gpus
        return this_machine(self.inventory.driver_version, [(gpu.name, gpu.compute_capability) for gpu in chosen])


def read_host(host: Host) -> HostFacts:
    """Look at this machine's GPUs anew. Never raises for a missing GPU or driver."""
    return HostFacts(host.env, secrets=host.secrets)


def git_commit(project: Path) -> str | None:
    """The project's commit, with ``-dirty`` when tracked files differ from it; None outside a repository."""
    head = checkout.commit(project)
    if head is None:
        return None
    return head[:12] + ("-dirty" if checkout.differs(project) else "")
