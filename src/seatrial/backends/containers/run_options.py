"""ContainerPlan → the options of one container, and the argv that is printed and run. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.job.in_container import FRAMED_LOG, LOG_LABEL
from seatrial.job.plan import ContainerPlan, Mount

#: Options whose flag is not their name.
_FLAGS = {
    "devices": "--device", "envs": "--env", "groups_add": "--group-add", "labels": "--label",
    "log_options": "--log-opt", "mounts": "--mount", "network_aliases": "--network-alias", "networks": "--network",
    "publish": "-p", "remove": "--rm", "security_options": "--security-opt",
}  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """One container to run, with the options that are set: long flags with underscores."""

    image: str
    command: tuple[str, ...]
    options: Mapping[str, Any]

    def plus(self, **options: Any) -> RunOptions:
        """Return the same with some options set or replaced."""
        return RunOptions(self.image, self.command, {**self.options, **options})

    def argv(self, client_call: Sequence[str]) -> list[str]:
        """Return the command line that runs it."""
        words = [*client_call, "container", "run"]
        for name, value in sorted(self.options.items()):
            words += _flag(_FLAGS.get(name, f"--{name.replace('_', '-')}"), value)
        return [*words, self.image, *self.command]


def run_options(container: ContainerPlan, image: str) -> RunOptions:
    """Return the options for every engine; an engine adds its own (log driver, …) with ``plus``.

    - The plan's command replaces the image's ENTRYPOINT and CMD: the agent is PID 1 and runs them itself.
    - ``--mount`` and not ``--volume``: an engine would create a missing source as an empty folder owned by root.
    - The swap limit is the memory limit: Docker would allow as much again in swap, and a training run that swaps
      has stopped in all but name.
    - The agent begins in ``/``, and the target in the plan's workdir: with an empty entry in an image's LD_LIBRARY_PATH
      the loader looks in the working directory (ld.so(8)), and PID 1 would run files of the project.
    - ``--pull never``: images are pulled before, with progress and with our own errors.
    """
    wanted: dict[str, Any] = {
        "cap_add": list(container.capabilities),
        "cap_drop": ["ALL"],
        "cpus": container.cpus,
        "devices": list(container.devices),
        "entrypoint": container.command[0] if container.command else None,
        "envs": dict(container.env),
        "gpus": container.gpus_flag,
        "groups_add": list(container.groups),
        "hostname": container.hostname,
        "labels": dict(container.labels),
        "memory": container.memory_bytes,
        "memory_swap": container.memory_bytes,
        "mounts": [mount_fields(mount) for mount in container.mounts],
        "name": container.name,
        "pids_limit": container.pids,
        "network_aliases": [container.network_alias] if container.network_alias else [],
        "networks": [container.network] if container.network else [],
        "publish": list(container.publish),
        "pull": "never",
        "read_only": container.read_only_root,
        "runtime": container.runtime,
        "security_options": ["no-new-privileges", *container.security_opts],
        "shm_size": container.shm_bytes,
        "stop_timeout": container.stop_timeout_s,
        "tmpfs": [f"{tmpfs.target}:{tmpfs.options}" for tmpfs in container.tmpfs],
        "ulimit": list(container.ulimits),
        "user": container.user,
        "userns": container.userns,
        "workdir": "/" if container.labels.get(LOG_LABEL) == FRAMED_LOG else container.workdir,
    }
    options = {name: value for name, value in wanted.items() if value is not False and value not in (None, [], {})}
    return RunOptions(image, tuple(container.command[1:]), options)


def mount_fields(mount: Mount) -> list[str]:
    """Return the fields of ``--mount``, which engines read as a line of CSV: names may hold commas."""
    fields = ["type=bind", _csv(f"source={mount.source}"), _csv(f"target={mount.target}")]
    return [*fields, "readonly"] if mount.read_only else fields


def _csv(field: str) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([field])
    return line.getvalue()


def _flag(flag: str, value: Any) -> list[str]:
    match value:
        case None | False:
            return []
        case True:
            return [flag]
        case dict():
            return [word for key, item in value.items() for word in (flag, f"{key}={item}")]
        case list() if flag == "--mount":
            return [word for fields in value for word in (flag, ",".join(fields))]
        case list():
            return [word for item in value for word in (flag, str(item))]
        case _:
            return [flag, str(value)]
