"""Docker: rootful, rootless and Desktop."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.cdi import read_specs
from seatrial.backends.containers.engine import INFO_TIMEOUT_S, ContainerEngine
from seatrial.backends.containers.engine_errors import unavailable_error
from seatrial.errors import EngineUnavailableError
from seatrial.findings.commands import INSTALL_DOCKER
from seatrial.findings.known import mid_sentence

#: dockerd looks for this program on its own PATH, and offers ``--gpus`` when it is there.
#: Source: moby daemon/nvidia_linux.go.
HOOK = "nvidia-container-runtime-hook"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Docker(ContainerEngine):
    """The Docker engine behind the ``docker`` command, in the context it is set to."""

    name = "docker"
    #: ``local`` keeps lines as bytes and small. Its log is the only copy of the evidence until the host has collected
    #: it, so it is not cut (the default is 100 MB); it goes with the container.
    own_options: ClassVar = {
        "log_driver": "local",
        "log_options": ["max-size=1t", "max-file=1", "compress=false"],
    }
    restart_command: ClassVar = "sudo systemctl restart docker"

    def facts(self) -> EngineFacts:
        program = shutil.which(self.call[0])
        if program is None:
            return EngineFacts(
                self.name,
                available=False,
                reason=f"{self.call[0]} is not installed",
                fix=INSTALL_DOCKER,
            )
        try:
            info = self._info()
        except EngineUnavailableError as error:
            reason = f"{error.message}: {mid_sentence(error.cause)}" if error.cause else error.message
            return EngineFacts(self.name, available=False, reason=reason, fix=error.run)
        return docker_facts(info, hook=shutil.which(HOOK, path=SYSTEM_PATH) is not None, client=Path(program))

    def _info(self) -> dict[str, Any]:
        ended = self._ask("info", "--format", "{{json .}}", timeout_s=INFO_TIMEOUT_S)
        # Without a daemon the client prints its own half; older ones exit 0 then (docker/cli#2300).
        info: dict[str, Any] = json.loads(ended.stdout) if ended.stdout.lstrip().startswith("{") else {}
        if ended.exit_code != 0 or not info.get("ServerVersion"):
            raise unavailable_error(self.name, ended.stderr or "\n".join(info.get("ServerErrors") or []))
        return info


def docker_facts(info: dict[str, Any], *, hook: bool, client: Path) -> EngineFacts:
    """``docker info`` → facts.

    Args:
        hook: the toolkit's hook is on this machine.
        client: path of the docker program.

    Source of the keys: docs.docker.com/reference/api/engine, SystemInfo; CDISpecDirs from 25, DiscoveredDevices
    from 28.3.
    """
    options = {option.partition(",")[0] for option in info.get("SecurityOptions") or []}
    version = str(info["ServerVersion"])
    desktop = str(info.get("OperatingSystem", "")).startswith("Docker Desktop")
    snap = str(info.get("DockerRootDir", "")).startswith("/var/snap/") or os.path.realpath(client).startswith("/snap/")
    kind = [word for word, is_so in _kinds(desktop, snap, "name=rootless" in options) if is_so]
    spec_dirs = tuple(info.get("CDISpecDirs") or ())
    return EngineFacts(
        "docker",
        available=True,
        reason=" ".join(["Docker", version, *kind, "responds"]),
        version=version,
        rootless="name=rootless" in options,
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        cdi_spec_dirs=spec_dirs,
        cdi_devices=_cdi_devices(info, spec_dirs),
        nvidia_hook=hook and not desktop,
        selinux="name=selinux" in options,
        cpu_limits=bool(info.get("CpuCfsQuota")),
        memory_limits=bool(info.get("MemoryLimit")),
        cgroup_driver=info.get("CgroupDriver"),
        desktop=desktop,
        snap=snap,
    )


def _kinds(desktop: bool, snap: bool, rootless: bool) -> tuple[tuple[str, bool], ...]:
    return ("Desktop", desktop), ("from the snap", snap), ("(rootless)", rootless)


def _cdi_devices(info: dict[str, Any], spec_dirs: tuple[str, ...]) -> tuple[str, ...]:
    """What the engine has discovered itself; an engine that does not tell reads the same folders as we do."""
    if "DiscoveredDevices" in info:
        devices = info["DiscoveredDevices"] or []
        return tuple(device["ID"] for device in devices if device.get("Source") == "cdi")
    return read_specs(Path(folder) for folder in spec_dirs).names
