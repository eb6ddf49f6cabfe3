"""Translate a ContainerPlan into a container's options and argv, as printed and as run; read the host's variables."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seatrial.errors import UsageError
from seatrial.job.in_container import FRAMED_LOG, LOG_LABEL
from seatrial.job.plan import ContainerPlan, Mount
from seatrial.system.host import Host
from seatrial.system.project_files import read_text
from seatrial.system.text import as_typed

#: Options whose flag is not their name.
_FLAGS = {
    "devices": "--device", "envs": "--env", "groups_add": "--group-add", "labels": "--label",
    "log_options": "--log-opt", "mounts": "--mount", "network_aliases": "--network-alias", "networks": "--network",
    "publish": "-p", "remove": "--rm", "security_options": "--security-opt",
}  # fmt: skip
#: Source: https://docs.docker.com/engine/cli/proxy/ lists these; programs read either case, so both are passed.
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY")


def run_argv(
    client_call: Sequence[str], container: ContainerPlan, image: str, *, bare_tmpfs: str = "", **more: Any
) -> list[str]:
    """Return the command line that runs a container.

    - The plan's command replaces the image's ENTRYPOINT and CMD: the agent is PID 1 and runs them itself.
    - ``--mount`` and not ``--volume``: an engine would create a missing source as an empty folder owned by root.
    - The swap limit is the memory limit: Docker would allow as much again in swap, and a training run that swaps
      has stopped in all but name.
    - The agent begins in ``/``, and the target in the plan's workdir: with an empty entry in an image's LD_LIBRARY_PATH
      the loader looks in the working directory (ld.so(8)), and PID 1 would run files of the project.
    - ``--pull never``: images are pulled before, with progress and with our own errors.

    Args:
        bare_tmpfs: last options of each tmpfs.
        more: options of an engine or a call (log_driver, detach …), as long flags with underscores.
    """
    options = {
        "cap_add": container.capabilities,
        "cap_drop": ["ALL"],
        "cpus": container.cpus,
        "devices": container.devices,
        "entrypoint": container.command[0] if container.command else None,
        "envs": container.env,
        "gpus": container.gpus_flag,
        "groups_add": container.groups,
        "hostname": container.hostname,
        "labels": container.labels,
        "memory": container.memory_bytes,
        "memory_swap": container.memory_bytes,
        "mounts": [mount_option(mount) for mount in container.mounts],
        "name": container.name,
        "pids_limit": container.pids,
        "network_aliases": container.network_alias or None,
        "networks": container.network or None,
        "publish": container.publish,
        "pull": "never",
        "read_only": container.read_only_root,
        "runtime": container.runtime,
        "security_options": ["no-new-privileges", *container.security_opts],
        "shm_size": container.shm_bytes,
        "stop_timeout": container.stop_timeout_s,
        "tmpfs": [f"{tmpfs.target}:{tmpfs.options}{bare_tmpfs}" for tmpfs in container.tmpfs],
        "ulimit": container.ulimits,
        "user": container.user,
        "userns": container.userns,
        "workdir": "/" if container.labels.get(LOG_LABEL) == FRAMED_LOG else container.workdir,
    }
    words = [*client_call, "container", "run"]
    for name, value in sorted({**options, **more}.items()):
        words += flag_words(_FLAGS.get(name, f"--{name.replace('_', '-')}"), value)
    return [*words, image, *container.command[1:]]


def mount_option(mount: Mount) -> str:
    """Return the value of ``--mount``, quoted as a line of CSV: a path may contain commas."""
    line, fields = io.StringIO(), ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    csv.writer(line, lineterminator="").writerow([*fields, "readonly"] if mount.read_only else fields)
    return line.getvalue()


def flag_words(flag: str, value: Any) -> list[str]:
    """Return a flag with its value, once for each of several; [] for None and False."""
    match value:
        case None | False:
            return []
        case True:
            return [flag]
        case dict():
            return [word for key, item in value.items() for word in (flag, f"{key}={item}")]
        case list() | tuple():
            return [word for item in value for word in (flag, str(item))]
        case _:
            return [flag, str(value)]


def read_env_file(path: Path, host: Host) -> dict[str, str]:
    """Read Docker's ``NAME=value``, quotes kept, or ``NAME``, if the host has it. Raises UsageError with the line."""
    lines = read_text(path, inside=None).splitlines()
    variables: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        line = line.lstrip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not name or "\0" in line or any(character.isspace() for character in name):
            message = f"{path}:{number}: expected NAME=value, got {name!r}"
            run = f"sed {'-i s/^export.//' if name.startswith('export ') else f'-n {number}p'} {as_typed(path)}"
            raise UsageError(message, cause="Docker's format: no export, and no space around the equals sign", run=run)
        if equals:
            variables[name] = value
        elif name in host.env:
            variables[name] = host.env[name]
    return variables


def proxy_env(host: Host) -> dict[str, str]:
    """Return the host's proxies in both cases, the lower first as in curl; none with a login: anybody may read it."""
    found = {}
    for name in PROXY_VARIABLES:
        value = host.env.get(name.lower()) or host.env.get(name)
        if value and not _holds_login(value):
            found[name] = found[name.lower()] = value
    return found


def proxies_with_login(host: Host) -> tuple[str, ...]:
    """Return names of the proxy variables set on this host whose URL holds a login: they travel as secrets do."""
    names = (name for upper in PROXY_VARIABLES for name in (upper, upper.lower()))
    return tuple(name for name in names if _holds_login(host.env.get(name, "")))


def _holds_login(url: str) -> bool:
    """Return whether it has a login; a value that is not a URL counts if it has an @."""
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return "@" in url
