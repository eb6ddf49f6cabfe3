"""Images without Python: no agent can run beside the target, so what needs one is refused."""

from __future__ import annotations

from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.planning.secrets import targets_secrets

WARNING = (
    "The image has no Python >= 3.8, so no agent runs next to the target: a companion container checks the GPUs, and"
    " nothing is sampled"
)


def refuse_what_needs_the_agent(job: Job) -> None:
    """Raises UsageError for what only an agent in the container can do."""
    if job.target.kind != "image":
        raise UsageError(
            f"{job.image.ready} has no Python >= 3.8 to run {job.target.value}",
            cause="Searched its PATH and the standard locations; set [image] python to use another",
            run=f"seatrial run --image {job.image.ready} -- PROGRAM",
        )
    needs = {
        "--secret": targets_secrets(job),
        "--timeout": job.timeout_s,
        "--gpu-memory": job.gpu_memory_bytes,
        "[watch] command": job.watch.command,
        "[watch] webhook": job.watch.webhook,
    }
    given = [flag for flag, value in needs.items() if value]
    if given:
        raise UsageError(
            f"{', '.join(given)} need{'s' if len(given) == 1 else ''} the agent, which {job.image.ready} cannot run",
            cause="It has no Python >= 3.8 on its PATH or in the standard locations; set [image] python to use another",
            run=f"seatrial run --image {job.image.ready}",
        )
