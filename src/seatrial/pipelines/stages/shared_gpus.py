"""Stages never share a GPU with each other: one that names its GPUs, or wants all, waits for them too."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from seatrial.errors import GpuContractError, GpuRequestError, GpusHeldError
from seatrial.job.model import Job
from seatrial.job.script import source_facts
from seatrial.planning.host import HostFacts, read_host
from seatrial.planning.plan import select_gpus
from seatrial.runs.liveness import leases


def would_share(job: Job, siblings: Collection[str], environ: Mapping[str, str]) -> None:
    """Raises GpusHeldError: the GPUs that a job names are held by one of the runs ``siblings``.

    Of a count, and of auto, planning takes free ones anyway.
    """
    if job.gpus.kind not in ("devices", "all") or not siblings:
        return
    held = {uuid: run for uuid, run in leases(environ).current().items() if run in siblings}
    facts = source_facts(job)
    for gpu in select_gpus(job, facts, read_host(environ), {}).gpus if held else ():
        if gpu.uuid in held:
            raise GpusHeldError(f"GPU {gpu.mig or gpu.index} is held by {held[gpu.uuid]}", run="seatrial runs ls")


def can_be_served(name: str, job: Job, host: HostFacts) -> None:
    """Raises GpuContractError or GpuRequestError, naming the stage: its GPUs are not on this machine, held or not."""
    if job.gpus.kind in ("none", "auto"):
        return
    facts = source_facts(job)
    try:
        select_gpus(job, facts, host, {})
    except (GpuContractError, GpuRequestError) as error:
        raise type(error)(f"stages.{name}.gpus: {error.message}", cause=error.cause, run=error.run) from None
