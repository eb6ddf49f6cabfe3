"""The flags that describe a Job, one table for every command that takes one, and the Job of a command line."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from seatrial.backends import table
from seatrial.cli.screens.run import Screen
from seatrial.cli.typed import check_folder
from seatrial.errors import UsageError
from seatrial.images.recipes import RECIPES
from seatrial.job.loading import load_job
from seatrial.job.model import Criteria, Job
from seatrial.runs.nearest import store_of
from seatrial.runs.resume import run_to_resume
from seatrial.runs.store import RunStore

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
    Flag("image.slim", "--slim", "Slim the image: none, files, unused, arch.", metavar="LEVEL"),
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
    Flag("kubernetes.kind", "--kind", "auto, job, pytorchjob, trainjob or jobset.", metavar="KIND"),
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
            run=f"seatrial run {shlex.join([words[0], '--', *words[1:], *target_arguments])}",
        )
    flags.pop("trust", None)
    leave_out = ("criteria",) if flags.pop("no_criteria", None) else ()
    named = flags.pop("project", None)
    project = check_folder(named or Path.cwd())
    if words:
        flags["target"] = words[0]
    flags["args"] = target_arguments
    if resume is None:
        return _load(project, flags, leave_out)
    anew = bool({"target", "module", "image"} & flags.keys())
    earlier = run_to_resume(RunStore(project.absolute()) if anew else store_of(named), resume)
    if anew:
        return _load(project, {**flags, "resume": earlier.id}, leave_out)
    if (serving := earlier.trusted_plan().job.serve) is not None:
        raise UsageError(
            f"Run {earlier.id} was a server: it has nothing to resume", run=f"seatrial serve {serving.typed}"
        )
    update: dict[str, Any] = {"resume": earlier.id, **({"criteria": Criteria()} if leave_out else {})}
    return _again(earlier.trusted_plan().job, flags).model_copy(update=update)


def _load(project: Path, flags: Mapping[str, Any], leave_out: Collection[str] = ()) -> Job:
    def runs_here(backend: str) -> bool:
        return table.place(backend) == "process"

    return load_job(project, flags, recipes=RECIPES, without_container=runs_here, leave_out=leave_out)


def _again(earlier: Job, flags: dict[str, Any]) -> Job:
    """An earlier run's job with what the flags change."""
    target: dict[str, Any] = (
        {"module": earlier.target.value} if earlier.target.kind == "module" else {"target": earlier.target.value}
    )
    if earlier.target.kind == "image":
        target = {"image": {"ready": earlier.image.ready}}
    args = {"args": list(earlier.target.args)}
    plain = _load(earlier.project, {**target, **args})
    given = {key: value for key, value in flags.items() if value not in (None, [])}
    asked = _load(earlier.project, {**target, **args, **given})
    changed = {key: value for key in Job.model_fields if (value := getattr(asked, key)) != getattr(plain, key)}
    told_in_full = (ask for ask in earlier.asks if not ask.hides)
    asks = tuple(dict.fromkeys([*told_in_full, *asked.asks]))
    return earlier.model_copy(update={"name": None, **changed, "notify": asked.notify, "asks": asks})


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
    from seatrial.cli.screens.consent import require_consent  # a plan asks nothing

    trust = bool(flags.pop("trust", False))
    job = read_job(words, target_arguments, flags, resume=resume)
    require_consent(job, os.environ, screen, trust=trust, building=building)
    return job
