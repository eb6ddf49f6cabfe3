"""Hand secrets to a run as files in memory, which the agent reads and deletes; no plan, argv or image has them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping

from seatrial.errors import DiskError, UsageError
from seatrial.job.asks import hidden
from seatrial.job.model import Job
from seatrial.system.host import Host

#: A shorter value stands in many words by chance.
_TELLING_LENGTH = 8


def check_secrets(job: Job, host: Host) -> None:
    """Check that each named secret is set on this host, and not where plan.json would show it. Raises UsageError."""
    if missing := [name for name in job.secrets if not host.secret(name)]:
        run = f"read -rs {missing[0]} && export {missing[0]}"
        raise UsageError(f"The secret {missing[0]} is not set in this environment", run=run)

    open_words = {"the target's arguments": job.target.args, "--env": without_secrets(job.env, job).values()}
    for name in job.secrets:
        for where, words in open_words.items():
            if len(host.secret(name)) >= _TELLING_LENGTH and any(host.secret(name) in word for word in words):
                message = f"The value of the secret {name} is in {where}, which plan.json and the receipt show"
                cause = f"--secret {name} already passes it to the target as the variable {name}"
                find = f"grep -rn {name} .   # read os.environ[{name!r}] in the script, and remove the value"
                raise UsageError(message, cause=cause, run=find)


def hide_notify(job: Job) -> Job:
    """Return the job as its plan has it: the commands for the end without their arguments."""
    if not job.notify.requested:
        return job
    return job.changed(notify=job.notify.hidden, asks=tuple(hidden(ask) for ask in job.asks))


def without_secrets(env: Mapping[str, str], job: Job) -> dict[str, str]:
    """Leave secrets out, also when --env names them: the plan is a file, and the handover alone brings their values."""
    return {name: value for name, value in env.items() if name not in job.secrets}


def write_secrets(job: Job, run_id: str, host: Host) -> None:
    """Write the job's secrets, readable by this user alone."""
    if not job.secrets:
        return
    folder = host.runtime_folder / run_id
    folder.mkdir(mode=0o700)
    for name in job.secrets:
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(host.secret(name))


def remove_secrets(run_id: str, host: Host) -> None:
    """Delete the secrets that the agent has not deleted itself, e.g. because it never started."""
    with contextlib.suppress(DiskError):  # no folder is this user's: no secret was written
        shutil.rmtree(host.runtime_folder / run_id, ignore_errors=True)
