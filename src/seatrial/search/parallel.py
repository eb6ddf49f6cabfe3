"""Trials at once: --parallel auto, and the part of a GPU that --gpu-memory is."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from seatrial.job.gpu_request import GpuRequest
from seatrial.job.model import Job
from seatrial.planning.host import read_host

#: More threads that follow runs than this gain nothing.
_MOST = 64


def with_share(job: Job, environ: Mapping[str, str]) -> Job:
    """A job that limits its GPU memory and names no GPUs, asking for that part of one."""
    gpus = read_host(environ).gpus if job.gpu_memory_bytes and job.gpus.kind == "auto" else ()
    if not gpus or job.gpu_memory_bytes is None:
        return job
    share = math.ceil(100 * job.gpu_memory_bytes / min(gpu.memory_bytes for gpu in gpus)) / 100
    return job if share >= 1 else job.model_copy(update={"gpus": GpuRequest("count", count=1, share=share)})


def how_many(job: Job, environ: Mapping[str, str]) -> int:
    """Trials at once.

    On GPUs by what each asks for; on the CPU by --cpus, and one without it: a script takes all cores there are.
    """
    gpus = read_host(environ).gpus
    wanted = job.gpus
    if wanted.kind == "none" or not gpus:
        cores = len(os.sched_getaffinity(0))
        return max(1, min(_MOST, int(cores // job.cpus))) if job.cpus else 1
    parents = {gpu.index for gpu in gpus if gpu.mig}
    units = len([gpu for gpu in gpus if gpu.mig or gpu.index not in parents])
    if wanted.kind == "devices":
        return 1
    if wanted.share:
        return max(1, min(_MOST, units * int(1 / wanted.share + 1e-6)))
    each = {"all": units, "count": wanted.count or 1}.get(wanted.kind, 1)
    return max(1, min(_MOST, units // each))
