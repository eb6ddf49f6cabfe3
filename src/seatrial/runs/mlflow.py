"""Pass the caller's MLflow server into a run: the address as a variable, the login as secrets, the run ID as a tag."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from seatrial.backends.base import Backend
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.system.address import is_loopback
from seatrial.system.host import Host

URI = "MLFLOW_TRACKING_URI"

#: A JSON object of tags for each run that MLflow's client begins. Source: mlflow/environment_variables.py.
CONTEXT = "MLFLOW_RUN_CONTEXT"
RUN_TAG = "seatrial.run"

#: Login of MLflow's client, from its environment.
_LOGIN = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


@dataclass(frozen=True)
class Tracked:
    """A job with the MLflow server that its runs log to.

    Attributes:
        passed: the server's address comes from the caller's environment, not from the job.
    """

    job: Job
    passed: bool = False
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    def for_run(self, run_id: str) -> Job:
        """Return the job with the tag that marks this run in MLflow."""
        if not self.passed or CONTEXT in self.job.env:
            return self.job
        return self.job.changed(env={**self.job.env, CONTEXT: json.dumps({RUN_TAG: run_id})})


def tracked(job: Job, backend: Backend, host: Host) -> Tracked:
    """Add the caller's MLFLOW_TRACKING_URI and its login to the job; what the job sets itself stays."""
    url = host.env.get(URI, "")
    parts = urlsplit(url)
    if URI in job.env or job.target.kind == "image" or parts.scheme not in ("http", "https") or not parts.hostname:
        return Tracked(job)
    if parts.username or parts.password:
        why = f"{URI} contains a login, which every receipt would show, so the run does not get it"
        return Tracked(job, warnings=(f"{why}; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",))
    if (why_not := _unreachable(job, parts.hostname, backend)) is not None:
        return Tracked(job, warnings=(f"MLflow at {url} cannot be reached from this run: {why_not}",))
    names = tuple(name for name in _LOGIN if host.env.get(name) and name not in job.secrets)
    changes = {"env": {**job.env, URI: url}, "secrets": (*job.secrets, *names)}
    chosen = Choice(what="MLflow", value=url, reason=f"{URI} of your environment; scripts read the same variable")
    return Tracked(job.changed(**changes), passed=True, choices=(chosen,))


def _unreachable(job: Job, host: str, backend: Backend) -> str | None:
    """Return why the run cannot connect to the host; None if it may."""
    if not backend.traits.isolates or job.network == "host":
        return None
    if job.network == "none":
        return "its network is none"
    if not is_loopback(host) or (job.hosts and job.network is None):
        return None
    if not backend.traits.on_this_host:
        return "it listens on this machine alone"
    return "it listens on the loopback address of this machine; use --network host"
