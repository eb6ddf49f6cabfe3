"""The virtual environment of a local run, and what a failure to install it means for this plan."""

from __future__ import annotations

from collections.abc import Callable

from seatrial.backends.local import ensure_venv
from seatrial.errors import EngineError
from seatrial.images.build.checks import without_cuda
from seatrial.images.build.failure import NAME_THE_PACKAGE, guess_among
from seatrial.job.plan import Plan


def make_venv(plan: Plan, say: Callable[[str], None]) -> None:
    """Make it, unless it is there. Raises what ``ensure_venv`` raises; of a guess, that it was one."""
    if plan.venv is None:
        return
    progress = say if plan.gpus_asked else without_cuda(say, plan.venv.requirements)
    try:
        ensure_venv(plan.venv.directory, plan.venv.requirements, plan.venv.base, progress)
    except EngineError as error:
        if guess := guess_among(plan.warnings, error.message.rpartition(" found for ")[2]):
            raise EngineError(error.message, cause=guess, run=NAME_THE_PACKAGE) from error
        raise
