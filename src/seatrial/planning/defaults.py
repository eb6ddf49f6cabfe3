"""Defaults of a job before it is planned: a recipe's options from variables, a server's arguments and port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.backends.base import Traits
from seatrial.errors import UsageError
from seatrial.job.model import Job
from seatrial.job.plan import CONTAINER_MODELS, CONTAINER_PROJECT
from seatrial.job.serving import CONTAINER_PORT, Serving

#: Variable → the recipes' flag.
FLAGS = {
    "EPOCHS": "--epochs",
    "BATCH_SIZE": "--batch",
    "LEARNING_RATE": "--learning-rate",
    "LR": "--learning-rate",
    "MIXED_PRECISION": "--precision",
    "SEED": "--seed",
}

#: What people write for MIXED_PRECISION → the recipes' names. "no" and the likes are Accelerate's.
PRECISIONS = {"true": "bf16", "1": "bf16", "yes": "bf16", "false": "fp32", "0": "fp32", "no": "fp32"}


def flags_of_env(env: Mapping[str, str], args: Sequence[str]) -> list[str]:
    """Flags for the variables that are set; a flag among the target's own arguments wins."""
    given = {word.partition("=")[0] for word in args}
    flags: list[str] = []
    for name, flag in FLAGS.items():
        if name in env and flag not in given:
            value = PRECISIONS.get(env[name].lower(), env[name]) if name == "MIXED_PRECISION" else env[name]
            flags += [flag, value]
    return flags


def env_flag_changes(job: Job) -> dict[str, Any]:
    """Return the fields of a recipe's job that have its variables as arguments.

    Raises UsageError if DATASET_TYPE names another recipe.
    """
    if job.target.kind != "recipe":
        return {}
    dataset = job.env.get("DATASET_TYPE")
    if dataset is not None and dataset.lower() not in (job.target.value, job.target.value.partition("-")[0]):
        raise UsageError(
            f"DATASET_TYPE={dataset} and the recipe {job.target.value} contradict each other",
            run=f"seatrial run {dataset.lower()}",
        )
    flags = flags_of_env(job.env, job.target.args)
    return {"target": job.target.with_args(*flags, *job.target.args)} if flags else {}


def server_changes(job: Job, traits: Traits) -> dict[str, Any]:
    """Return the fields of a job with the arguments of ``python -m seatrial.serve`` and, in a container, its port.

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
    host = f"[{serving.address}]" if ":" in serving.address else serving.address
    publish = () if shared else (f"{host}:{serving.port}:{CONTAINER_PORT}",)
    return {"target": job.target.with_args(*args), "publish": (*job.publish, *publish)}


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
