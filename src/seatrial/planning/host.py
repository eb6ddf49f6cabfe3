"""Facts of this machine and user that planning needs, read once."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from seatrial.job.plan import Gpu
from seatrial.probe import driver_files, nvml
from seatrial.probe.container import Cgroup
from seatrial.probe.driver_files import DriverFiles
from seatrial.probe.machine import Machine as MachineLoad
from seatrial.probe.nvml import Inventory
from seatrial.stack.machine import Machine, this_machine
from seatrial.system import checkout
from seatrial.system.cache import cache_folder
from seatrial.system.state import state_folder


@dataclass(frozen=True)
class HostFacts:
    """This machine and this user.

    Attributes:
        gpus: what NVML lists, in PCI order; () with the reason in ``inventory.error`` when there is none.
        cache_folder: where downloads and compiled kernels persist.
        state_folder: this user's; no container sees it.
        memory_bytes: that this process may use, else of the machine (virtual machines may grow); None: unknown.
        most_pids: processes and threads that the machine can have; None: unknown.
    """

    inventory: Inventory
    gpus: tuple[Gpu, ...]
    uid: int
    gid: int
    user_name: str
    cache_folder: Path
    state_folder: Path
    memory_bytes: int | None
    most_pids: int | None
    environ: Mapping[str, str]
    find_driver: Callable[[], DriverFiles] = driver_files.find

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
        """Driver and GPUs as the resolver wants them: of these GPUs, or of all that are here."""
        chosen = self.gpus if gpus is None else gpus
        return this_machine(self.inventory.driver_version, [(gpu.name, gpu.compute_capability) for gpu in chosen])


def read_host(environ: Mapping[str, str]) -> HostFacts:
    """Look at this machine. Never raises for a missing GPU or driver."""
    inventory = nvml.inventory()
    uid = os.getuid()
    try:
        user_name = pwd.getpwuid(uid).pw_name
    except KeyError:
        user_name = environ.get("USER") or "user"
    return HostFacts(
        inventory=inventory,
        gpus=tuple(Gpu.model_validate(gpu, from_attributes=True) for gpu in inventory.gpus),
        uid=uid,
        gid=os.getgid(),
        user_name=user_name,
        cache_folder=cache_folder(environ),
        state_folder=state_folder(environ),
        memory_bytes=Cgroup().memory_limit_bytes() or MachineLoad().read()["memory_total_bytes"],
        most_pids=_most_pids(),
        environ=environ,
    )


def _most_pids() -> int | None:
    """The smaller of the kernel's two limits (proc(5), pid_max and threads-max)."""
    try:
        return min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    except (OSError, ValueError):
        return None


def git_commit(project: Path) -> str | None:
    """The project's commit, with ``-dirty`` when tracked files differ from it; None outside a repository."""
    head = checkout.commit(project)
    if head is None:
        return None
    return head[:12] + ("-dirty" if checkout.differs(project) else "")
