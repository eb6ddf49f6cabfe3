"""The flags that describe a Job, one table for every command that takes one. typed_job.py makes the Job of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

Words = Annotated[
    list[str] | None, typer.Argument(metavar="TARGET", help="Script or recipe name; omit with -m or --image.")
]


class Flag(NamedTuple):
    """A flag of every command that takes a job.

    Attributes:
        key: where its value belongs in seatrial.toml; OWN are no keys of the file.
        names: as typed, the long one first.
        kind: str, list[str], bool or Path; parsed by job.loading, as the file is.
    """

    key: str
    names: str
    help: str
    kind: Any = str
    metavar: str | None = None

    @property
    def group(self) -> str | None:
        """Under which heading of the help it is; None: beside the verb's own options."""
        return next((title for title, keys in _GROUPS.items() if self.key in keys), None)

    @property
    def parameter(self) -> inspect.Parameter:
        """As typer reads it from a command's signature."""
        option = typer.Option(*self.names.split(), help=self.help, metavar=self.metavar, rich_help_panel=self.group)
        return inspect.Parameter(
            self.key.replace(".", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[self.kind | None, option],
        )


#: In the order of --help.
FLAGS = (
    # the target and its place
    Flag("module", "-m", "Run a module, as python -m does.", metavar="MODULE"),
    Flag("image.ready", "--image", "An existing image; its ENTRYPOINT is kept.", metavar="IMAGE"),
    Flag(
        "image.target",
        "--target",
        "Build for h100, or driver=535.129,gpu=A4000; default: this machine.",
        metavar="MACHINE",
    ),
    Flag("image.slim", "--slim", "Slim the image: auto, none, files, unused, arch.", metavar="LEVEL"),
    Flag("on", "--on", "auto, docker, podman, local or k8s.", metavar="BACKEND"),
    Flag(
        "gpus",
        "--gpus",
        "auto, none, all, a count, 0.5, 0,2, device=0,2, GPU-<uuid>, MIG-<uuid>, 0:1 (MIG slice) or mig-1g.10gb.",
        metavar="REQUEST",
    ),
    Flag("nodes", "--nodes", "Number of nodes, or a host list: 2, or host1,host2.", metavar="N"),
    Flag("restarts", "--restarts", "Restart failed ranks up to N times.", metavar="N"),
    Flag("launcher", "--launcher", "auto, torchrun or none.", metavar="NAME"),
    Flag("name", "--name", "A name for the run.", metavar="NAME"),
    Flag("data", "--data", "Folder at /data, read-only; DIR:rw opens it; pvc:NAME on k8s.", metavar="DIR"),
    Flag("models", "--models", "Folder at /models, for saved models.", metavar="DIR"),
    # the container
    Flag("mounts", "--mount -v", "SOURCE:TARGET[:ro|rw].", kind=list[str], metavar="SRC:DST"),
    Flag("env", "--env -e", "NAME=VALUE, or NAME to pass the host's value.", kind=list[str], metavar="NAME=VALUE"),
    Flag("env_files", "--env-file", "File of NAME=VALUE.", kind=list[str], metavar="FILE"),
    Flag(
        "secrets", "--secret", "Pass a host variable; its value is hidden everywhere.", kind=list[str], metavar="NAME"
    ),
    Flag("publish", "--publish -p", "HOST:CONTAINER port.", kind=list[str], metavar="PORTS"),
    Flag("network", "--network", "As for docker run.", metavar="NAME"),
    Flag("workdir", "--workdir -w", "Working directory.", metavar="DIR"),
    Flag("devices", "--device", "An additional device node.", kind=list[str], metavar="PATH"),
    Flag("ulimits", "--ulimit", "As for docker run.", kind=list[str], metavar="LIMIT"),
    Flag("cpus", "--cpus", "CPU cores.", metavar="N"),
    Flag("memory", "--memory", "Memory limit, e.g. 16GB.", metavar="SIZE"),
    Flag("shm_size", "--shm-size", "Size of /dev/shm; default 2 GiB per GPU.", metavar="SIZE"),
    Flag("gpu_memory", "--gpu-memory", "Limit memory per GPU (torch, TensorFlow, JAX).", metavar="SIZE"),
    Flag("writable", "--writable", "Make the root filesystem writable.", kind=bool),
    # Kubernetes (--on k8s)
    Flag("kubernetes.kind", "--kind", "job, jobset, pytorchjob or trainjob.", metavar="KIND"),
    Flag("kubernetes.namespace", "--namespace", "Default: the context's.", metavar="NAME"),
    Flag("kubernetes.context", "--context", "Of the kubeconfig.", metavar="NAME"),
    Flag("kubernetes.queue", "--queue", "Kueue's LocalQueue to wait in.", metavar="NAME"),
    Flag("kubernetes.require_capacity", "--require-capacity", "Refuse if no current node has the capacity.", kind=bool),
    # limits and criteria
    Flag("timeout", "--timeout", "Stop the target after this long, e.g. 2h.", metavar="TIME"),
    Flag("grace", "--grace", "Between SIGTERM and SIGKILL; default 30s.", metavar="TIME"),
    Flag("notify", "--notify", "When it has ended: desktop, a command, or a URL.", kind=list[str], metavar="WHERE"),
    Flag("no_hook", "--no-hook", "Do not measure the script's steps from inside.", kind=bool),
    Flag("no_tune", "--no-tune", "Leave out the changes of [tune] in the project's file.", kind=bool),
    Flag("strict", "--strict", "Exit with 4 if criteria are not met, defaults included.", kind=bool),
    Flag("no_criteria", "--no-criteria", "Leave out the file's [criteria], e.g. to run tests.", kind=bool),
    Flag("with_names", "--with-names", "Keep user and host names in the receipt.", kind=bool),
    # the project
    Flag("trust", "--trust", "Allow what the project's file requests without asking.", kind=bool),
    Flag("project", "--project -C", "The project folder; default: here.", kind=Path, metavar="DIR"),
)


#: Headings of the help, in the order of help.GROUPS.
_GROUPS: dict[str, tuple[str, ...]] = {
    "Target": ("module", "image.ready", "image.target", "image.slim", "on"),
    "GPUs": ("gpus", "gpu_memory", "nodes", "restarts", "launcher"),
    "Data": ("data", "models", "mounts"),
    "Container": (
        "env", "env_files", "secrets", "publish", "network", "workdir", "devices", "ulimits", "cpus", "memory",
        "shm_size", "writable",
    ),
    "Kubernetes": tuple(flag.key for flag in FLAGS if flag.key.startswith("kubernetes.")),
    "Limits and criteria": ("timeout", "grace", "strict", "no_criteria", "notify", "with_names", "no_hook", "no_tune",),
}  # fmt: skip

#: What is only typed.
OWN = ("no_criteria", "trust", "project")

_OF_A_SCRIPT = ("module", "image.ready", "nodes", "restarts", "launcher", "no_hook", "no_tune")
_OF_A_RUN = (
    "restarts",
    "launcher",
    "timeout",
    "grace",
    "strict",
    "no_criteria",
    "notify",
    "with_names",
    "no_hook",
    "no_tune",
)
_OF_A_CONTAINER = (
    "publish",
    "network",
    "workdir",
    "devices",
    "ulimits",
    "cpus",
    "memory",
    "shm_size",
    "gpu_memory",
    "writable",
)
_OF_A_JOB = ("kubernetes.kind", "kubernetes.queue", "kubernetes.require_capacity")

#: Command → flags that could change nothing there, so it does not have them.
WITHOUT: dict[str, tuple[str, ...]] = {
    "build": ("name", *_OF_A_RUN, *_OF_A_CONTAINER, *_OF_A_JOB),
    "shell": (*_OF_A_RUN, *_OF_A_JOB),
    "predict": (*_OF_A_SCRIPT, "publish", "notify"),
    "bench": ("module", "image.ready", "launcher", "notify", "no_hook", "no_tune"),
    "export": (*_OF_A_SCRIPT, "publish", "notify"),
    "serve": ("module", "nodes", "restarts", "launcher", "no_hook", "no_tune"),
    "tune": ("no_tune", "restarts"),
}


def takes_job(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command FLAGS, those it is WITHOUT apart, beside its own parameters.

    It receives those given as the mapping ``flags``, shaped as seatrial.toml is.
    """
    usable = [flag for flag in FLAGS if flag.key not in WITHOUT.get(command.__name__, ())]
    by_parameter = {flag.parameter.name: flag for flag in usable}

    @functools.wraps(command)
    def with_flags(**arguments: Any) -> int:
        given = {flag.key: arguments.pop(name) for name, flag in by_parameter.items()}
        return command(flags=_in_tables(given), **arguments)

    own = [value for key, value in inspect.signature(command, eval_str=True).parameters.items() if key != "flags"]
    keyword_only = [value.replace(kind=inspect.Parameter.KEYWORD_ONLY) for value in own]
    parameters = [*keyword_only, *(flag.parameter for flag in usable)]
    with_flags.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {value.name: value.annotation for value in parameters}
    return with_flags


def _in_tables(given: Mapping[str, Any]) -> dict[str, Any]:
    """``{"image.ready": "x"}`` → ``{"image": {"ready": "x"}}``, without the flags that were not given."""
    flags: dict[str, Any] = {}
    for key, value in given.items():
        if value is not None:
            *tables, last = key.split(".")
            (flags.setdefault(tables[0], {}) if tables else flags)[last] = value
    return flags
