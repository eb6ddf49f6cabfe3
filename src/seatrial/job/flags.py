"""The options that describe a Job: each once, for the command line, its help, completion, messages and backends.

A new option is a row here, a field of the Job (model.py), and the place that acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Flag(NamedTuple):
    """An option of every command that takes a job.

    Attributes:
        key: where its value belongs in seatrial.toml; OWN are not keys of the file.
        names: as typed, the long one first.
        kind: str, list[str], bool or Path; parsed by job.loading, as the file is.
        group: the heading in the help, from the table below.
        needs: the group of options that a backend must honour for it (backends.base.Traits).
        without: commands, apart by a space, that lack it because it could change nothing there.
    """

    key: str
    names: str
    help: str
    kind: Any = str
    metavar: str | None = None
    group: str = ""
    needs: str | None = None
    without: str = ""

    @property
    def name(self) -> str:
        """The name in messages: ``--memory``, ``-m``."""
        return self.names.split()[0]

    @property
    def parameter(self) -> str:
        """The name of the parameter of the command's function."""
        return self.key.replace(".", "_")


#: Heading of the help → its options; "" for those listed with the command's own.
_OPTIONS: dict[str, tuple[Flag, ...]] = {
    "": (
        Flag("trust", "--trust", "Allow what the project's file requests without asking.", kind=bool),
        Flag("project", "--project -C", "The project folder; default: the repository.", kind=Path, metavar="DIR"),
    ),
    "Common": (
        Flag(
            "gpus", "--gpus",
            "auto, none, all, a count, 0.5, 0,2, device=0,2, GPU-<uuid>, MIG-<uuid>, 0:1 (MIG slice) or mig-1g.10gb.",
            metavar="REQUEST",
        ),
        Flag("on", "--on", "auto, docker, podman, local or k8s.", metavar="BACKEND"),
        Flag("data", "--data", "Folder at /data, read-only; DIR:rw opens it; pvc:NAME on k8s.", metavar="DIR"),
        Flag("env", "--env -e", "NAME=VALUE, or NAME to pass the host's value.", kind=list[str], metavar="NAME=VALUE"),
        Flag("name", "--name", "A name for the run.", metavar="NAME", without="build"),
    ),
    "Target": (
        Flag("module", "-m", "Run a module, as python -m does.", metavar="MODULE", without="export serve"),
        Flag(
            "image.ready", "--image", "An existing image; its ENTRYPOINT is kept.",
            metavar="IMAGE", needs="image", without="export",
        ),
        Flag(
            "image.target", "--target", "Build for h100, or driver=535.129,gpu=A4000; default: this machine.",
            metavar="MACHINE",
        ),
        Flag("image.slim", "--slim", "Slim the image: auto, none, files, unused, arch.", metavar="LEVEL"),
    ),
    "GPUs": (
        Flag(
            "nodes", "--nodes", "Number of nodes, or a host list: 2, or host1,host2.",
            metavar="N", without="export serve",
        ),
        Flag(
            "restarts", "--restarts", "Restart failed ranks up to N times.",
            metavar="N", without="build shell export serve tune",
        ),
        Flag("launcher", "--launcher", "auto, torchrun or none.", metavar="NAME", without="build shell export serve"),
        Flag(
            "gpu_memory", "--gpu-memory", "Limit memory per GPU (torch, TensorFlow, JAX).",
            metavar="SIZE", without="build",
        ),
    ),
    "Data": (
        Flag("models", "--models", "Folder at /models, for saved models.", metavar="DIR"),
        Flag("mounts", "--mount -v", "SOURCE:TARGET[:ro|rw].", kind=list[str], metavar="SRC:DST", needs="container"),
    ),
    "Container": (
        Flag("env_files", "--env-file", "File of NAME=VALUE.", kind=list[str], metavar="FILE"),
        Flag(
            "secrets", "--secret", "Pass a host variable; its value is hidden everywhere.",
            kind=list[str], metavar="NAME",
        ),
        Flag(
            "publish", "--publish -p", "HOST:CONTAINER port.",
            kind=list[str], metavar="PORTS", needs="network", without="build export",
        ),
        Flag("network", "--network", "As for docker run.", metavar="NAME", needs="network", without="build"),
        Flag("workdir", "--workdir -w", "Working directory.", metavar="DIR", without="build"),
        Flag(
            "devices", "--device", "An additional device node.",
            kind=list[str], metavar="PATH", needs="container", without="build",
        ),
        Flag(
            "ulimits", "--ulimit", "As for docker run.",
            kind=list[str], metavar="LIMIT", needs="container", without="build",
        ),
        Flag("cpus", "--cpus", "CPU cores.", metavar="N", needs="limits", without="build"),
        Flag("memory", "--memory", "Memory limit, e.g. 16GB.", metavar="SIZE", needs="limits", without="build"),
        Flag(
            "shm_size", "--shm-size", "Size of /dev/shm; default 2 GiB per GPU.",
            metavar="SIZE", needs="limits", without="build",
        ),
        Flag("writable", "--writable", "Make the root filesystem writable.", kind=bool, needs="image", without="build"),
    ),
    "Kubernetes": (
        Flag(
            "file", "--file -f", "Your own Job or PyTorchJob, as it is.",
            kind=Path, metavar="MANIFEST", without="build shell export serve tune",
        ),
        Flag(
            "kubernetes.kind", "--kind", "job, jobset, pytorchjob or trainjob.",
            metavar="KIND", without="build shell",
        ),
        Flag("kubernetes.namespace", "--namespace", "Default: the context's.", metavar="NAME"),
        Flag("kubernetes.context", "--context", "Context of the kubeconfig; default: its current one.", metavar="NAME"),
        Flag(
            "kubernetes.queue", "--queue", "Kueue's LocalQueue to wait in.",
            metavar="NAME", without="build shell serve",
        ),
        Flag(
            "kubernetes.require_capacity", "--require-capacity", "Refuse if no current node has the capacity.",
            kind=bool, without="build shell",
        ),
    ),
    "Limits and criteria": (
        Flag(
            "timeout", "--timeout", "Stop the target after this long, e.g. 2h.",
            metavar="TIME", without="build shell",
        ),
        Flag("grace", "--grace", "Between SIGTERM and SIGKILL; default 30s.", metavar="TIME", without="build shell"),
        Flag(
            "notify", "--notify", "A command to run here when it has ended.",
            kind=list[str], metavar="COMMAND", without="build shell export",
        ),
        Flag(
            "no_hook", "--no-hook", "Do not measure the script's steps from inside.",
            kind=bool, without="build shell export serve",
        ),
        Flag(
            "no_tune", "--no-tune", "Leave out the changes of [tune] in the project's file.",
            kind=bool, without="build shell export serve tune",
        ),
        Flag(
            "strict", "--strict", "Exit with 4 if criteria are not met, defaults included.",
            kind=bool, without="build shell",
        ),
        Flag(
            "no_criteria", "--no-criteria", "Leave out the file's [criteria], e.g. to run tests.",
            kind=bool, without="build shell",
        ),
        Flag(
            "with_names", "--with-names", "Keep user and host names in the receipt.",
            kind=bool, without="build shell",
        ),
    ),
}  # fmt: skip

FLAGS = tuple(flag._replace(group=group) for group, flags in _OPTIONS.items() for flag in flags)
GROUPS = tuple(group for group in _OPTIONS if group)

#: Options that are not keys of the file.
OWN = ("no_criteria", "trust", "project", "file")


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
