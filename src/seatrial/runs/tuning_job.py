"""tuning_job: a project's job → the job that tries changes on its script and measures them."""

from __future__ import annotations

from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.tuning import Changes, Tuning

#: Seconds of a budget below which there is no room for a baseline and one change.
_LEAST_BUDGET_S = 20.0


def tuning_job(job: Job, asked: Tuning) -> Job:
    """The job with its script tuned in place of run: what ``[tune]`` of the file has is left out, and no criteria hold.

    Raises UsageError: a recipe, several nodes, a budget that is too small, or no hook.
    """
    if job.target.kind == "recipe":
        raise UsageError(
            f"{job.target.value} is a recipe, which is tuned already; seatrial tune is for scripts",
            run="seatrial tune train.py",
        )
    if job.nodes > 1:
        raise UsageError("seatrial tune runs on one machine", run="seatrial tune …   # without --nodes")
    if job.no_hook:
        raise UsageError("seatrial tune measures with the hook that --no-hook leaves out", run="seatrial tune …")
    if asked.budget_s < _LEAST_BUDGET_S:
        raise UsageError(
            f"--budget {asked.budget_s:g}: a baseline and one change need at least {_LEAST_BUDGET_S:g} s",
            run="seatrial tune … --budget 180",
        )
    return job.model_copy(
        update={
            "tuning": asked,
            "tune": Changes(),
            "criteria": job.criteria.only("max_image_bytes"),
            "restarts": 0,
            "resume": None,
        }
    )
