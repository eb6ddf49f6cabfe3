"""The GPUs of this machine that a run was given."""

from __future__ import annotations

from seatrial.job.model import Job
from seatrial.job.plan import Gpu, Injection
from seatrial.planning.site import GpuPlan, Site


def selected(site: Site) -> tuple[Gpu, ...]:
    """Of a site on this machine."""
    assert site.selection is not None, "a place on this machine is given its GPUs"
    return site.selection.gpus


def gpu_count(site: Site) -> int:
    """How many GPUs the plan is for: of this machine, or of the one that it is made for."""
    return site.another.count if site.another else len(selected(site))


def gpu_plan(job: Job, site: Site, injection: Injection) -> GpuPlan:
    """No GPUs were asked for, or ``auto`` has found none, or these are required."""
    gpus = selected(site)
    if site.another:
        return GpuPlan("required", site.another.count, injection)
    if gpus:
        return GpuPlan("required", len(gpus), injection, gpus)
    return GpuPlan("none" if job.gpus.kind == "none" else "auto-cpu", 0, injection)
