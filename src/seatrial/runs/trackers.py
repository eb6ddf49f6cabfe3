"""Connect a run to experiment trackers: the caller's MLflow server, and the pages that a receipt names.

The run gets the server's address as a variable, its login as secrets, and the run's ID as a tag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from seatrial.backends.base import Backend
from seatrial.job.model import Job
from seatrial.job.plan import Choice, Plan
from seatrial.system.address import is_loopback
from seatrial.system.host import Host, logins
from seatrial.system.text import without_login

if TYPE_CHECKING:
    from seatrial.receipt.sections.what_ran import TrackerPage

URI = "MLFLOW_TRACKING_URI"
#: A JSON object of tags for each run that MLflow's client begins. Source: mlflow/environment_variables.py.
CONTEXT = "MLFLOW_RUN_CONTEXT"
RUN_TAG = "seatrial.run"
#: Login of MLflow's client, from its environment.
_LOGIN = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


def with_server(job: Job, backend: Backend, host: Host, run_id: str) -> tuple[Job, tuple[Choice, ...], tuple[str, ...]]:
    """Return the job with the caller's server, its login and a tag of the run, added to its own; choices, warnings."""
    url = host.env.get(URI, "")
    parts = urlsplit(url)
    if URI in job.env or job.target.kind == "image" or parts.scheme not in ("http", "https") or not parts.hostname:
        return job, (), ()
    if parts.username or parts.password:
        why = f"{URI} contains a login, which every receipt would show, so the run does not get it"
        return job, (), (f"{why}; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",)
    if (why_not := _unreachable(job, parts.hostname, backend)) is not None:
        return job, (), (f"MLflow at {url} cannot be reached from this run: {why_not}",)
    env = {**job.env, URI: url}
    env.setdefault(CONTEXT, json.dumps({RUN_TAG: run_id}))
    names = tuple(name for name in _LOGIN if host.env.get(name) and name not in job.secrets)
    chosen = Choice(what="MLflow", value=url, reason=f"{URI} of your environment; scripts read the same variable")
    return job.changed(env=env, secrets=(*job.secrets, *names)), (chosen,), ()


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


def tracker_pages(plan: Plan) -> Iterator[TrackerPage]:
    """Yield where the numbers of a run are shown, for its receipt."""
    from seatrial.receipt.sections.what_ran import TrackerPage  # a plan shows no receipt

    if plan.job.env.get(URI, "").startswith(("http://", "https://")):
        yield TrackerPage(name="MLflow", url=without_login(plan.job.env[URI]))
    for name, row in logins().items():
        offline = "later" in row and row["offline"].items() <= plan.agent.env.items()
        if "page" in row and (offline or {*row["given"]} & {*plan.job.secrets}):
            yield TrackerPage(name=name + f", after: {row.get('later')}" * offline, url=row["page"])
