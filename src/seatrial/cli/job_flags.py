"""The flags that describe a Job, shared by run, plan and shell: the same keys as seatrial.toml, as plain strings."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from seatrial.cli.screens.consent import require_consent
from seatrial.cli.screens.run import Screen
from seatrial.cli.typed import check_folder
from seatrial.errors import UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.loading import load_job
from seatrial.job.model import Job
from seatrial.runs.resume import run_to_resume
from seatrial.runs.store import RunStore

_JOB = "Target and place"
_CONTAINER = "The container"
_JUDGING = "Limits and criteria"
_CLUSTER = "Kubernetes (--on k8s)"

#: Flag → its key in the table [kubernetes].
_CLUSTER_KEYS = {
    "kind": "kind",
    "namespace": "namespace",
    "kube_context": "context",
    "require_capacity": "require_capacity",
}

Words = Annotated[
    list[str] | None, typer.Argument(metavar="TARGET", help="Script or recipe name; omit with -m or --image.")
]


def _option(*names: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)


def job_flags(
    module: Annotated[str | None, _option("-m", help="Run a module, as python -m does.", panel=_JOB)] = None,
    image: Annotated[
        str | None, _option("--image", help="An existing image; its ENTRYPOINT is kept.", panel=_JOB)
    ] = None,
    built_for: Annotated[
        str | None,
        _option(
            "--target",
            help="Build for h100, or driver=535.129,gpu=A4000; default: this machine.",
            panel=_JOB,
            metavar="MACHINE",
        ),
    ] = None,
    slim: Annotated[
        str | None,
        _option("--slim", help="Slim the image: none, files, unused, arch.", panel=_JOB, metavar="LEVEL"),
    ] = None,
    on: Annotated[
        str | None,
        _option("--on", help="auto, docker, podman, local or k8s.", panel=_JOB, metavar="BACKEND"),
    ] = None,
    gpus: Annotated[
        str | None,
        _option(
            "--gpus",
            help="auto, none, all, a count, 0,2, device=0,2, GPU-<uuid>, MIG-<uuid> or 0:1 (MIG slice).",
            panel=_JOB,
            metavar="REQUEST",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        _option("--nodes", help="Number of nodes, or a host list: 2, or host1,host2.", panel=_JOB, metavar="N"),
    ] = None,
    restarts: Annotated[
        str | None, _option("--restarts", help="Restart failed ranks up to N times.", panel=_JOB, metavar="N")
    ] = None,
    launcher: Annotated[
        str | None, _option("--launcher", help="auto, torchrun or none.", panel=_JOB, metavar="NAME")
    ] = None,
    name: Annotated[str | None, _option("--name", help="A name for the run.", panel=_JOB)] = None,
    data: Annotated[
        str | None,
        _option(
            "--data",
            help="Folder at /data, read-only; DIR:rw opens it; pvc:NAME on k8s.",
            panel=_JOB,
            metavar="DIR",
        ),
    ] = None,
    models: Annotated[
        str | None, _option("--models", help="Folder at /models, for saved models.", panel=_JOB, metavar="DIR")
    ] = None,
    mounts: Annotated[
        list[str] | None, _option("--mount", "-v", help="SOURCE:TARGET[:ro|rw].", panel=_CONTAINER)
    ] = None,
    env: Annotated[
        list[str] | None, _option("--env", "-e", help="NAME=VALUE, or NAME to pass the host's value.", panel=_CONTAINER)
    ] = None,
    env_files: Annotated[list[str] | None, _option("--env-file", help="File of NAME=VALUE.", panel=_CONTAINER)] = None,
    secrets: Annotated[
        list[str] | None,
        _option(
            "--secret", help="Pass a host variable; its value is hidden everywhere.", panel=_CONTAINER, metavar="NAME"
        ),
    ] = None,
    publish: Annotated[
        list[str] | None, _option("--publish", "-p", help="HOST:CONTAINER port.", panel=_CONTAINER)
    ] = None,
    network: Annotated[str | None, _option("--network", help="As for docker run.", panel=_CONTAINER)] = None,
    workdir: Annotated[str | None, _option("--workdir", "-w", help="Working directory.", panel=_CONTAINER)] = None,
    devices: Annotated[
        list[str] | None, _option("--device", help="An additional device node.", panel=_CONTAINER)
    ] = None,
    ulimits: Annotated[list[str] | None, _option("--ulimit", help="As for docker run.", panel=_CONTAINER)] = None,
    cpus: Annotated[str | None, _option("--cpus", help="CPU cores.", panel=_CONTAINER)] = None,
    memory: Annotated[str | None, _option("--memory", help="Memory limit, e.g. 16GB.", panel=_CONTAINER)] = None,
    shm_size: Annotated[
        str | None, _option("--shm-size", help="Size of /dev/shm; default 2 GiB per GPU.", panel=_CONTAINER)
    ] = None,
    gpu_memory: Annotated[
        str | None, _option("--gpu-memory", help="Limit memory per GPU (torch, TensorFlow).", panel=_CONTAINER)
    ] = None,
    writable: Annotated[
        bool | None, _option("--writable", help="Make the root filesystem writable.", panel=_CONTAINER)
    ] = None,
    kind: Annotated[
        str | None, _option("--kind", help="auto, job, pytorchjob or trainjob.", panel=_CLUSTER, metavar="KIND")
    ] = None,
    namespace: Annotated[str | None, _option("--namespace", help="Default: the context's.", panel=_CLUSTER)] = None,
    kube_context: Annotated[str | None, _option("--context", help="Of the kubeconfig.", panel=_CLUSTER)] = None,
    require_capacity: Annotated[
        bool | None, _option("--require-capacity", help="Refuse if no current node has the capacity.", panel=_CLUSTER)
    ] = None,
    timeout: Annotated[
        str | None, _option("--timeout", help="Stop the target after this long, e.g. 2h.", panel=_JUDGING)
    ] = None,
    grace: Annotated[
        str | None, _option("--grace", help="Between SIGTERM and SIGKILL; default 30s.", panel=_JUDGING)
    ] = None,
    strict: Annotated[
        bool | None, _option("--strict", help="Exit with 4 if criteria are unmet.", panel=_JUDGING)
    ] = None,
    with_names: Annotated[
        bool | None, _option("--with-names", help="Keep user and host names in the receipt.", panel=_JUDGING)
    ] = None,
    trust: Annotated[
        bool | None,
        _option("--trust", help="Allow what the project's file requests without asking.", panel=_JOB),
    ] = None,
    project: Annotated[
        Path | None, _option("--project", "-C", help="The project folder; default: here.", panel=_JOB, metavar="DIR")
    ] = None,
) -> dict[str, Any]:
    """The flags that were given, under their keys in seatrial.toml (``project``, ``image`` and ``trust`` aside)."""
    return {key: value for key, value in locals().items() if value is not None}


def read_job(words: list[str], target_arguments: list[str], flags: dict[str, Any], *, resume: str | None = None) -> Job:
    """The Job of a command line and the project's seatrial.toml.

    Args:
        words: what stands before ``--``: the target, or nothing.
        target_arguments: what stands behind it.
        resume: a run to go on from; without a target, its job is taken, and the flags given change it.
    """
    if len(words) > 1:
        raise UsageError(
            f'"{words[1]}" is an unexpected argument: the target\'s own arguments go after --',
            run=f"seatrial run {words[0]} -- {' '.join(words[1:])}",
        )
    flags.pop("trust", None)
    project = check_folder(flags.pop("project", None) or Path.cwd())
    image_keys = {"image": "ready", "built_for": "target", "slim": "slim"}
    given = {key: flags.pop(name) for name, key in image_keys.items() if name in flags}
    if given:
        flags["image"] = given
    cluster = {key: flags.pop(flag) for flag, key in _CLUSTER_KEYS.items() if flag in flags}
    if cluster:
        flags["kubernetes"] = cluster
    if words:
        flags["target"] = words[0]
    flags["args"] = target_arguments
    if resume is None:
        return load_job(project, flags, recipes=RECIPES)
    earlier = run_to_resume(RunStore(project.absolute()), resume)
    if {"target", "module", "image"} & flags.keys():
        return load_job(project, {**flags, "resume": earlier.id}, recipes=RECIPES)
    return _again(earlier.trusted_plan().job, flags).model_copy(update={"resume": earlier.id})


def _again(earlier: Job, flags: dict[str, Any]) -> Job:
    """An earlier run's job with what the flags change."""
    target: dict[str, Any] = (
        {"module": earlier.target.value} if earlier.target.kind == "module" else {"target": earlier.target.value}
    )
    if earlier.target.kind == "image":
        target = {"image": {"ready": earlier.image.ready}}
    args = {"args": list(earlier.target.args)}
    plain = load_job(earlier.project, {**target, **args}, recipes=RECIPES)
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    asked = load_job(earlier.project, {**target, **args, **given}, recipes=RECIPES)
    changed = {key: value for key in Job.model_fields if (value := getattr(asked, key)) != getattr(plain, key)}
    asks = tuple(dict.fromkeys([*earlier.asks, *asked.asks]))
    return earlier.model_copy(update={"name": None, **changed, "asks": asks})


def read_allowed_job(
    words: list[str],
    target_arguments: list[str],
    flags: dict[str, Any],
    screen: Screen,
    *,
    resume: str | None = None,
    building: bool = False,
) -> Job:
    """As read_job, of a project that may have what its file asks for: the user is asked where it is the first time.

    Raises TrustError (consent.require_consent).
    """
    trust = bool(flags.pop("trust", False))
    job = read_job(words, target_arguments, flags, resume=resume)
    require_consent(job, os.environ, screen, trust=trust, building=building)
    return job


def takes_job(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command job_flags' parameters beside its own; it receives them as the mapping ``flags``."""
    flag_parameters = inspect.signature(job_flags, eval_str=True).parameters

    @functools.wraps(command)
    def with_flags(**arguments: Any) -> int:
        flags = job_flags(**{key: arguments.pop(key) for key in flag_parameters})
        return command(flags=flags, **arguments)

    own = inspect.signature(command, eval_str=True).parameters
    parameters = [*(value for key, value in own.items() if key != "flags"), *flag_parameters.values()]
    keyword_only = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in parameters]
    with_flags.__signature__ = inspect.Signature(keyword_only, return_annotation=int)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {value.name: value.annotation for value in keyword_only}
    return with_flags
