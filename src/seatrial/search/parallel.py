"""--parallel auto: as many trials as fit on this machine's GPUs, or on its cores."""

from __future__ import annotations

import os
from collections.abc import Mapping

from seatrial.job.model import Job
from seatrial.planning.host import read_host

#: More threads that follow runs than this gain nothing.
_MOST = 64


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
    each = {"all": units, "count": wanted.count or 1}.get(wanted.kind, 1)
    return max(1, min(_MOST, units // each))
