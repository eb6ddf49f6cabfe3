"""The server's own command line, and the way in to it: what a job that serves becomes in a kind of place."""

from __future__ import annotations

from seatrial.backends.base import Traits
from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.plan import CONTAINER_MODELS, CONTAINER_PROJECT
from seatrial.job.serving import CONTAINER_PORT, Serving


def with_server(job: Job, traits: Traits) -> Job:
    """The job with the arguments of ``python -m seatrial.serve`` and, in a container, its port published.

    Raises UsageError: the place or its network has no port to reach it by.
    """
    serving = job.serve
    assert serving is not None
    if not traits.on_this_host:
        raise UsageError(
            "seatrial serve starts a server on this machine, not on Kubernetes",
            cause="A cluster brings its own ways to a port: Deployments, Services, Ingresses",
            run=f"seatrial serve {serving.typed} --on docker",
        )
    if job.network == "none":
        raise UsageError(
            "A server on the network none is reached by nobody", run=f"seatrial serve {serving.typed}   # no --network"
        )
    # Behind the network of this machine or of another container nothing is published: it listens where it is told.
    shared = not traits.isolates or (job.network or "").startswith(("host", "container:", "ns:"))
    listens = (serving.address, serving.port) if shared else ("0.0.0.0", CONTAINER_PORT)
    args = ["--model", _spec(serving, job, traits), "--name", serving.name]
    args += ["--host", listens[0], "--port", str(listens[1]), *serving.options]
    target = job.target.model_copy(update={"args": tuple(args)})
    host = f"[{serving.address}]" if ":" in serving.address else serving.address
    publish = () if shared else (f"{host}:{serving.port}:{CONTAINER_PORT}",)
    return job.model_copy(update={"target": target, "publish": (*job.publish, *publish)})


def _spec(serving: Serving, job: Job, traits: Traits) -> str:
    """The model as the server finds it from its working directory."""
    if serving.kind == "recipe":
        return serving.model
    if serving.kind == "file":
        assert job.models is not None, "a file is served from the folder that it lies in"
        return f"{CONTAINER_MODELS if traits.isolates else job.models.source}/{serving.model}"
    if job.workdir is None:
        return serving.model
    return f"{CONTAINER_PROJECT if traits.isolates else job.project}/{serving.model}"
