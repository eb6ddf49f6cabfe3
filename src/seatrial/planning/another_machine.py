"""A plan for a machine that is only described (``--target h100``) and is not this one: its GPUs, by number or name."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.errors import GpuContractError
from seatrial.job.gpus import Selection
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.planning.host import HostFacts
from seatrial.stack.machine import Machine, parse_target, same_machine


@dataclass(frozen=True)
class AnotherMachine:
    """Holds the request for the described machine's GPUs.

    Attributes:
        described: ``the target h100``.
        count: how many GPUs are planned for, at least 1.
        flag: for ``docker run --gpus``: ``1``, ``all``, ``"device=0,2"``.
        devices: by index or UUID; () where any will do.
    """

    described: str
    count: int
    flag: str
    devices: tuple[str, ...]
    choice: Choice

    def selection(self) -> Selection:
        """None of this machine's GPUs."""
        return Selection((), (self.choice,))


def another_machine(job: Job, host: HostFacts) -> AnotherMachine | None:
    """The machine that ``--target`` describes, where it is not this one and GPUs are wanted; else None."""
    if job.image.target is None or job.gpus.kind == "none":
        return None
    target = parse_target(job.image.target)
    if same_machine(target, host.machine()):
        return None
    return _asked_for(job, target)


def _asked_for(job: Job, target: Machine) -> AnotherMachine:
    request = job.gpus
    count = request.count or max(1, len(request.devices))
    one = f"one GPU of {target.described}; name a count for more: --gpus 2"
    reason = {
        "auto": f"--gpus auto: {one}",
        "all": f"--gpus all: how many {target.described} has is unknown, so it is planned for as one",
    }.get(request.kind, f"--gpus {request}, of {target.described}")
    value = ", ".join(request.devices) if request.devices else "all" if request.kind == "all" else str(count)
    flag = f'"device={",".join(request.devices)}"' if request.devices else value
    return AnotherMachine(
        target.described, count, flag, request.devices, Choice(what="gpus", value=value, reason=reason)
    )


def refuse_without_gpu(job: Job, host: HostFacts) -> None:
    """A run whose image is for a GPU is no CPU run. Raises GpuContractError where this machine has none."""
    if job.image.target is None or job.gpus.kind != "auto" or host.gpus:
        return
    raise GpuContractError(
        f"The run is built for {job.image.target}, and this machine has no NVIDIA GPU",
        cause=host.inventory.error,
        run=f"seatrial plan … --target {job.image.target} --as compose    # or, on the CPU: seatrial run --gpus none …",
    )
