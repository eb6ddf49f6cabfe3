"""Docker: rootful, rootless and Desktop."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.cdi import read_specs
from seatrial.backends.containers.client import Dialect
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.findings.finding import INSTALL_DOCKER

#: dockerd searches its own PATH for this program, and offers ``--gpus`` if it finds it. Source: moby
#: daemon/nvidia_linux.go.
HOOK = "nvidia-container-runtime-hook"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Docker(ContainerEngine):
    """The Docker engine behind the ``docker`` command, in the context it is set to."""

    dialect = Dialect(
        "docker",
        install=INSTALL_DOCKER,
        restart="sudo systemctl restart docker",
        info_format="{{json .}}",
        info_key="ServerVersion",
        storage_root="{{.DockerRootDir}}",
        buildkit=True,
        compose=True,
        label_form='{{.Label "%s"}}',
    )
    #: ``local`` keeps lines as bytes and small. Its log is the only copy of the evidence until the host has collected
    #: it, so it is not cut (the default is 100 MB); it goes with the container.
    own_options: ClassVar = {"log_driver": "local", "log_options": ["max-size=1t", "max-file=1", "compress=false"]}

    def facts_of(self, info: dict[str, Any], program: Path) -> EngineFacts:
        return docker_facts(info, hook=shutil.which(HOOK, path=SYSTEM_PATH) is not None, client=program)


def docker_facts(info: dict[str, Any], *, hook: bool, client: Path) -> EngineFacts:
    """Read the engine's facts from ``docker info``.

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
    kinds = {"Desktop": desktop, "from the snap": snap, "(rootless)": "name=rootless" in options}
    spec_dirs = tuple(info.get("CDISpecDirs") or ())
    return EngineFacts(
        "docker",
        available=True,
        reason=" ".join(["Docker", version, *(word for word, is_so in kinds.items() if is_so), "responds"]),
        version=version,
        rootless="name=rootless" in options,
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        cdi_spec_dirs=spec_dirs,
        cdi_devices=_cdi_devices(info, spec_dirs),
        nvidia_hook=hook and not desktop,
        selinux="name=selinux" in options,
        cpu_limits=bool(info.get("CpuCfsQuota")),
        cores=info.get("NCPU"),
        memory_limits=bool(info.get("MemoryLimit")),
        cgroup_driver=info.get("CgroupDriver"),
        desktop=desktop,
        snap=snap,
    )


def _cdi_devices(info: dict[str, Any], spec_dirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the devices that the engine has discovered, else those in the folders that it reads."""
    if "DiscoveredDevices" in info:
        devices = info["DiscoveredDevices"] or []
        return tuple(device["ID"] for device in devices if device.get("Source") == "cdi")
    return read_specs(Path(folder) for folder in spec_dirs).names
