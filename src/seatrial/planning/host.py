"""Facts of this machine and user that planning needs, read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from seatrial.errors import GpuContractError
from seatrial.job.gpus import Selection
from seatrial.job.model import Job
from seatrial.job.plan import Choice, Gpu
from seatrial.probe import driver_files, nvml
from seatrial.probe.driver_files import DriverFiles
from seatrial.probe.nvml import Inventory
from seatrial.stack.machine import TargetMachine, parse_target, same_machine, this_machine
from seatrial.system import checkout
from seatrial.system.host import Host


class HostFacts(Host):
    """This host with its GPUs as they are now; ``find_driver`` looks for the driver's files."""

    find_driver: Callable[[], DriverFiles] = staticmethod(driver_files.find)

    @cached_property
    def inventory(self) -> Inventory:
        return nvml.inventory()

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that NVML lists, in PCI order; () with the reason in ``inventory.error`` if it lists none."""
        return tuple(Gpu.model_validate(gpu, from_attributes=True) for gpu in self.inventory.gpus)

    @cached_property
    def driver(self) -> DriverFiles:
        """Find the driver's files; only where GPUs of this machine go into a container."""
        return self.find_driver()

    def load(self) -> dict[str, float]:
        """Return GPU UUID → how busy it is, for picking the idlest: utilisation plus share of memory in use, 0 to 2."""
        gpus = self.inventory.gpus
        in_use = {gpu.uuid: (gpu.memory_used_bytes or 0) / max(1, gpu.memory_bytes) for gpu in gpus}
        return {gpu.uuid: (gpu.utilization_pct or 0) / 100 + in_use[gpu.uuid] for gpu in gpus}

    def machine(self, gpus: Sequence[Gpu] | None = None) -> TargetMachine:
        """Describe driver and GPUs for the resolver: of these GPUs, or of all that are here."""
        chosen = self.gpus if gpus is None else gpus
        return this_machine(self.inventory.driver_version, [(gpu.name, gpu.compute_capability) for gpu in chosen])


def read_host(host: Host) -> HostFacts:
    """Look at this machine's GPUs anew. Never raises for a missing GPU or driver."""
    return HostFacts(host.env, secrets=host.secrets)


def git_commit(project: Path) -> str | None:
    """Return the project's commit, with ``-dirty`` when tracked files differ from it; None outside a repository."""
    if (head := checkout.commit(project)) is None:
        return None
    return head[:12] + ("-dirty" if checkout.differs(project) else "")


@dataclass(frozen=True)
class AnotherMachine:
    """Holds the request for the described machine's GPUs.

    Attributes:
        count: how many GPUs are planned for, at least 1.
        flag: for ``docker run --gpus``: ``1``, ``all``, ``"device=0,2"``.
        devices: by index or UUID; () where any will do.
    """

    count: int
    flag: str
    devices: tuple[str, ...]
    choice: Choice

    def selection(self) -> Selection:
        """Select none of this machine's GPUs."""
        return Selection((), (self.choice,))


def another_machine(job: Job, host: HostFacts) -> AnotherMachine | None:
    """Return the machine that ``--target`` describes, where it is not this one and GPUs are wanted; else None."""
    if job.image.target is None or job.gpus.kind == "none":
        return None
    target, request = parse_target(job.image.target), job.gpus
    if same_machine(target, host.machine()):
        return None
    count = request.count or max(1, len(request.devices))
    one = f"one GPU of {target.described}; name a count for more: --gpus 2"
    reason = {
        "auto": f"--gpus auto: {one}",
        "all": f"--gpus all: how many {target.described} has is unknown; the plan assumes one",
    }.get(request.kind, f"--gpus {request}, of {target.described}")
    value = ", ".join(request.devices) if request.devices else "all" if request.kind == "all" else str(count)
    flag = f'"device={",".join(request.devices)}"' if request.devices else value
    return AnotherMachine(count, flag, request.devices, Choice(what="gpus", value=value, reason=reason))


def refuse_without_gpu(job: Job, host: HostFacts) -> None:
    """Refuse to run an image for a GPU on this machine if it has none. Raises GpuContractError."""
    if job.image.target is None or job.gpus.kind != "auto" or host.gpus:
        return
    problem = f"The run is built for {job.image.target}, and this machine has no NVIDIA GPU"
    run = f"seatrial plan … --target {job.image.target} --as compose    # or, on the CPU: seatrial run --gpus none …"
    raise GpuContractError(problem, cause=host.inventory.error, run=run)
