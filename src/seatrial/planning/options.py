"""Refuse options that would do nothing on a backend or a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.backends.base import Traits
from seatrial.errors import UsageError
from seatrial.job.flags import FLAGS
from seatrial.job.in_container import CONTAINER_MODELS
from seatrial.job.keys import typed_keys
from seatrial.job.model import Job
from seatrial.job.plan import Gpu
from seatrial.job.script import ScriptFacts
from seatrial.job.tables import CONTAINER_PORT
from seatrial.job.units import format_bytes
from seatrial.planning.container.limits import LIMITED_FRAMEWORKS
from seatrial.system.project_files import own_table

#: Share of a GPU's memory that frameworks can use: CUDA's own context takes about 0.5 GB of 80 (H200, 2026-11-22).
_USABLE = 0.95
#: Variable → the recipes' flag; value of MIXED_PRECISION → the recipes' name.
_RECIPES: Mapping[str, dict[str, str]] = own_table(Path(__file__).with_name("recipes.toml"))
RECIPE_FLAGS, PRECISIONS = _RECIPES["flags"], _RECIPES["precisions"]


def refuse_options(job: Job, traits: Traits, name: str) -> None:
    """Raise UsageError for options that the backend of this name does not honour."""
    fields = {**typed_keys(Job), "image.ready": ""}
    needy = [flag for flag in FLAGS if flag.needs and flag.needs not in traits.honours]
    given = [flag for flag in needy if getattr(job, fields[flag.key], job.target.kind == "image")]
    if given:
        words, run = traits.refusal
        needs = "need" if len(given) > 1 else "needs"
        names = ", ".join(flag.name for flag in given)
        typed = ", ".join(name for flag in given for name in flag.names.split())
        raise UsageError(words.format(flags=names, needs=needs, name=name), run=run.format(typed=typed))


def gpu_memory_limit(job: Job, script: ScriptFacts, gpus: tuple[Gpu, ...]) -> int | None:
    """Return bytes of each GPU that the target may use; None for all. Raises UsageError for what cannot be held."""
    limit = job.gpu_memory_bytes
    if limit is None and job.gpus.share and gpus and script.framework in LIMITED_FRAMEWORKS:
        return int(job.gpus.share * _USABLE * min(gpu.memory_bytes for gpu in gpus))
    if limit is None:
        return None
    if job.gpus.kind == "none":
        run = "seatrial run …   # without --gpu-memory"
        raise UsageError("--gpu-memory limits nothing on a run without GPUs (--gpus none)", run=run)
    if script.framework not in LIMITED_FRAMEWORKS:
        problem = f"--gpu-memory cannot be enforced on this target: {script.framework or 'its source'} has no limit"
        cause = "torch, TensorFlow and JAX support a limit; CUDA itself does not"
        raise UsageError(problem, cause=cause, run="seatrial run …   # without --gpu-memory")
    smallest = min(gpus, key=lambda gpu: gpu.memory_bytes, default=None)
    if smallest is not None and limit > smallest.memory_bytes:
        has = format_bytes(smallest.memory_bytes)
        problem = f"--gpu-memory {format_bytes(limit)}: GPU {smallest.index} ({smallest.name}) has {has}"
        raise UsageError(problem, run="seatrial run …   # without --gpu-memory, which may then use all of it")
    return limit


def flags_of_env(env: Mapping[str, str], args: Sequence[str]) -> list[str]:
    """Return flags for the variables that are set; a flag among the target's own arguments wins."""
    given = {word.partition("=")[0] for word in args}
    flags: list[str] = []
    for name, flag in RECIPE_FLAGS.items():
        if name in env and flag not in given:
            flags += [flag, PRECISIONS.get(env[name].lower(), env[name]) if name == "MIXED_PRECISION" else env[name]]
    return flags


def env_flag_changes(job: Job) -> dict[str, Any]:
    """Return the fields that have a recipe's variables as arguments. Raises UsageError: DATASET_TYPE names another."""
    if job.target.kind != "recipe":
        return {}
    dataset = job.env.get("DATASET_TYPE")
    if dataset is not None and dataset.lower() not in (job.target.value, job.target.value.partition("-")[0]):
        problem = f"DATASET_TYPE={dataset} and the recipe {job.target.value} contradict each other"
        raise UsageError(problem, run=f"seatrial run {dataset.lower()}")
    flags = flags_of_env(job.env, job.target.args)
    return {"target": job.target.with_args(*flags, *job.target.args)} if flags else {}


def server_changes(job: Job, traits: Traits) -> dict[str, Any]:
    """Return a serving job's fields: arguments, in a container its port. Raises UsageError: no port is reachable."""
    serving = job.serve
    assert serving is not None
    if not traits.on_this_host:
        cause = "A cluster publishes ports by Deployments, Services and Ingresses"
        run = f"seatrial serve {serving.typed} --on docker"
        raise UsageError("seatrial serve starts a server on this machine, not on Kubernetes", cause=cause, run=run)
    if job.network == "none":
        run = f"seatrial serve {serving.typed}   # no --network"
        raise UsageError("No client can reach a server on the network none", run=run)
    # On the network of this machine or of another container nothing is published: it listens at the given address.
    shared = not traits.isolates or (job.network or "").startswith(("host", "container:", "ns:"))
    folder = CONTAINER_MODELS if traits.isolates else job.models and job.models.source  # that a file lies in
    model = serving.model if serving.kind == "recipe" else f"{folder}/{serving.model}"
    listens = (serving.address, serving.port) if shared else ("0.0.0.0", CONTAINER_PORT)
    args = ["--model", model, "--name", serving.name]
    args += ["--host", listens[0], "--port", str(listens[1]), *serving.options]
    host = f"[{serving.address}]" if ":" in serving.address else serving.address
    publish = () if shared else (f"{host}:{serving.port}:{CONTAINER_PORT}",)
    return {"target": job.target.with_args(*args), "publish": (*job.publish, *publish)}
