"""The options that describe a Job: one table for every command that takes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Flag(NamedTuple):
    """An option of every command that takes a job.

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
        """The heading in the help; None for the command's own options."""
        return next((title for title, keys in _GROUPS.items() if self.key in keys), None)

    @property
    def parameter(self) -> str:
        """The name of the parameter of the command's function."""
        return self.key.replace(".", "_")


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


#: Headings of the help, in their order.
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

GROUPS = tuple(_GROUPS)

#: Options that are no keys of the file.
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
    "export": (*_OF_A_SCRIPT, "publish", "notify"),
    "serve": ("kubernetes.queue", "module", "nodes", "restarts", "launcher", "no_hook", "no_tune"),
    "tune": ("no_tune", "restarts"),
}


def in_tables(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``{"image.ready": "x"}`` into ``{"image": {"ready": "x"}}``, without options that were not typed."""
    flags: dict[str, Any] = {}
    for key, value in given.items():
        if value not in (None, False, ()):
            *tables, last = key.split(".")
            (flags.setdefault(tables[0], {}) if tables else flags)[last] = (
                list(value) if isinstance(value, tuple) else value
            )
    return flags
