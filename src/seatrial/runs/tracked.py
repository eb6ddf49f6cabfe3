"""What a run is given of the trackers that are up: address, folder and, as a secret, the token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from seatrial.backends.base import Backend
from seatrial.images.recipes import TRACKER_REQUIREMENTS, recipe, tracks
from seatrial.job.model import Job
from seatrial.job.plan import Choice
from seatrial.runs.mlflow_login import LOGIN, RUN_TAG, login_of
from seatrial.runs.services import Service, ServiceStore
from seatrial.runs.store import RunStore
from seatrial.system.address import is_loopback

URI = "MLFLOW_TRACKING_URI"

#: A JSON object of tags for each run that MLflow's client begins. Source: mlflow/environment_variables.py.
CONTEXT = "MLFLOW_RUN_CONTEXT"

#: For MLflow's client. How often it asks a server that does not answer: 7, its default, keeps a training waiting for
#: minutes. The address that it prints is the one inside, which no browser knows; and images have no git.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


@dataclass(frozen=True)
class Tracked:
    """A job with its trackers.

    Attributes:
        environ: the caller's, and in it what became a secret of the run.
        events: the run gets a folder for TensorBoard.
        asked: the server that has to answer before the run starts.
    """

    job: Job
    environ: Mapping[str, str]
    events: bool = False
    asked: Service | None = None
    choices: tuple[Choice, ...] = ()
    warnings: tuple[str, ...] = ()

    def for_run(self, run_id: str) -> Job:
        """The job with what tells this run apart in MLflow."""
        if URI not in self.job.env or self.asked is None or CONTEXT in self.job.env:
            return self.job
        context = json.dumps({RUN_TAG: run_id})
        return self.job.model_copy(update={"env": {**self.job.env, CONTEXT: context}})

    def changed(self, **update: Any) -> Tracked:
        return replace(self, job=self.job.model_copy(update=update))


def tracked(job: Job, backend: Backend, environ: Mapping[str, str]) -> Tracked:
    """The job with what is up for its project. What the user says themselves stays."""
    services = ServiceStore(RunStore(job.project, environ).record).all()
    made = Tracked(job, environ)
    if "tensorboard" in services and backend.place != "cluster":
        made = _with_recipe(replace(made, events=True), "tensorboard", backend)
    if "mlflow" in services:
        made = _with_mlflow(made, services["mlflow"], backend)
    return made


def _with_mlflow(made: Tracked, service: Service, backend: Backend) -> Tracked:
    job = made.job
    if URI in job.env or job.target.kind == "image":  # an image's own command may have no agent, which hands secrets
        return made
    network, url = _way(job, service, backend)
    if url is None:
        why = f"MLflow at {service.url} cannot be reached from this run: {_why_not(job, service, backend)}"
        return replace(made, warnings=(*made.warnings, why))
    login = login_of(service, made.environ)
    names = tuple(name for name in LOGIN if name in login and name not in job.secrets)
    made = replace(made, environ={**made.environ, **login}, asked=service)
    made = made.changed(network=network, env={**_SETTINGS, **job.env, URI: url}, secrets=(*job.secrets, *names))
    where = f"; on its network {network}" if network != job.network else ""
    chosen = Choice(what="MLflow", value=url, reason=f"seatrial up mlflow: scripts find it in {URI}{where}")
    return _with_recipe(replace(made, choices=(*made.choices, chosen)), "mlflow", backend)


def _way(job: Job, service: Service, backend: Backend) -> tuple[str | None, str | None]:
    """(the run's network, the address on it); no address where there is no way."""
    host = urlsplit(service.url).hostname or ""
    if not service.ours and not is_loopback(host):
        return job.network, service.url if job.network != "none" else None
    if backend.place == "cluster":
        return job.network, None
    if backend.place == "process" or job.network == "host" or (job.hosts and job.network is None):
        return job.network, service.url
    if service.network is not None and service.engine == backend.name and job.network in (None, service.network):
        return service.network, service.inside_url
    return job.network, None


def _why_not(job: Job, service: Service, backend: Backend) -> str:
    if backend.place == "cluster":
        return "it listens on this machine alone"
    if service.engine not in (None, backend.name):
        return f"it runs in {service.engine} and the run in {backend.name} (seatrial up mlflow --on {backend.name})"
    return f"its network is {job.network or 'its own'}; use --network host"


def _with_recipe(made: Tracked, name: str, backend: Backend) -> Tracked:
    """A recipe that trains sends its numbers there, too; a script does as it is written."""
    target = made.job.target
    if target.kind != "recipe" or not recipe(target.value).trains or backend.place == "process":
        return made
    if made.job.image.ready is not None or tracks(target.args, name):
        return made
    chosen = Choice(
        what="tracker",
        value=f"--track {name}",
        reason=f"{name} is up (seatrial runs stop {name}); adds {', '.join(TRACKER_REQUIREMENTS[name])} to the image",
    )
    with_flag = target.model_copy(update={"args": (*target.args, "--track", name)})
    return replace(made.changed(target=with_flag), choices=(*made.choices, chosen))
