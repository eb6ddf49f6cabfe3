"""Docker (rootful, rootless and Desktop) and Podman (which has no daemon: every command is the engine)."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from seatrial.backends.base import EngineFacts, Handle
from seatrial.backends.containers.cdi import DEFAULT_SPEC_DIRS, read_specs
from seatrial.backends.containers.client import Dialect
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.backends.containers.log import K8sFile, OpenLog
from seatrial.errors import GpuContractError, SeatrialError, fallback
from seatrial.findings.finding import ADD_SUBIDS, GENERATE_CDI, INSTALL_DOCKER
from seatrial.job.plan import ContainerPlan
from seatrial.probe import processes
from seatrial.system import command

#: dockerd searches its own PATH for this program, and offers ``--gpus`` if it finds it. Source: moby
#: daemon/nvidia_linux.go.
HOOK = "nvidia-container-runtime-hook"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Facts of every Podman. Source: podman-run(1).
PODMAN: dict[str, Any] = {
    "ignores_gpus_flag": True,
    "group_keyword": "keep-groups",
    "names_every_user": True,
    "maps_the_caller": True,
    "configured_network": True,
}


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
    """Read the engine's facts from ``docker info``; ``hook``: the toolkit's is here; ``client``: the docker program.

    Source of the keys: docs.docker.com/reference/api/engine, SystemInfo; CDISpecDirs from 25, DiscoveredDevices
    from 28.3.
    """
    options = {option.partition(",")[0] for option in info.get("SecurityOptions") or []}
    version = str(info["ServerVersion"])
    desktop = str(info.get("OperatingSystem", "")).startswith("Docker Desktop")
    snap = str(info.get("DockerRootDir", "")).startswith("/var/snap/") or os.path.realpath(client).startswith("/snap/")
    kinds = {"Desktop": desktop, "from the snap": snap, "(rootless)": "name=rootless" in options}
    spec_dirs = tuple(info.get("CDISpecDirs") or ())
    found = tuple(each["ID"] for each in info.get("DiscoveredDevices") or [] if each.get("Source") == "cdi")
    return EngineFacts(
        "docker",
        available=True,
        reason=" ".join(["Docker", version, *(word for word, is_so in kinds.items() if is_so), "responds"]),
        version=version,
        rootless="name=rootless" in options,
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        cdi_spec_dirs=spec_dirs,
        cdi_devices=found if "DiscoveredDevices" in info else read_specs(map(Path, spec_dirs)).names,
        nvidia_hook=hook and not desktop,
        selinux="name=selinux" in options,
        cpu_limits=bool(info.get("CpuCfsQuota")),
        cores=info.get("NCPU"),
        memory_limits=bool(info.get("MemoryLimit")),
        cgroup_driver=info.get("CgroupDriver"),
        desktop=desktop,
        snap=snap,
    )


class Podman(ContainerEngine):
    """The Podman of the calling user."""

    dialect = Dialect(
        "podman",
        install="sudo apt-get install -y podman",
        restart="podman system migrate",
        info_format="json",
        info_key="version",
        storage_root="{{.Store.GraphRoot}}",
        buildkit=False,
        compose=False,
        label_form='{{index .Labels "%s"}}',
    )
    #: - k8s-file: read back on every machine; the default, journald, is not, where none runs. Its log is the only
    #:   copy of the evidence until the host has collected it, so it is not cut; it goes with the container.
    own_options: ClassVar = {"log_driver": "k8s-file", "log_options": ["max-size=1tb"]}
    #: Podman otherwise copies what lies under a tmpfs into it, and a mask would show what it hides.
    bare_tmpfs = ",notmpcopyup"

    def facts_of(self, info: dict[str, Any], program: Path) -> EngineFacts:
        return podman_facts(info, DEFAULT_SPEC_DIRS)

    def argv(self, client_call: Sequence[str], container: ContainerPlan, image: str, **options: Any) -> list[str]:
        """Return the command line. Raises GpuContractError for ``--gpus``, which Podman accepts and ignores.

        Source: podman-run(1), "--gpus: provided for compatibility"; with 4.3.1 it ends with 0 without a GPU.
        """
        if container.gpus_flag is not None:
            cause = "Podman silently ignores that flag; GPUs are passed by CDI name or as device nodes"
            raise GpuContractError("This plan asks Podman for GPUs with --gpus", cause=cause, run=GENERATE_CDI)
        return super().argv(client_call, container, image, **options)

    def open_log(self, handle: Handle) -> OpenLog:
        """Open the file that conmon writes; if it is unreadable (``sudo podman``), the output after the end.

        With ``keep-id`` the file lies in a folder of the container's root; then conmon's open file is read.
        """
        about = None
        with contextlib.suppress(SeatrialError):
            about = self.client.inspect("container", handle.id)
        if about is None:  # the container is gone
            return super().open_log(handle)
        logs = [*self.client.call, "container", "logs", handle.id]
        wait = shlex.join([*self.client.call, "container", "wait", handle.id])
        in_the_end = ["sh", "-c", f"{wait} >/dev/null && exec {shlex.join(logs)}"]
        path, writer = Path(about["HostConfig"]["LogConfig"].get("Path") or "/"), about["State"].get("ConmonPid")
        readable = os.access(path, os.R_OK) and path.is_file()
        followed = path if readable else _open_file(int(writer or 0), path)

        def goes_on() -> bool:
            return bool(writer) and processes.read(int(writer)) is not None

        def opened(follow: bool) -> command.Piped | K8sFile:
            if followed is not None and (follow or readable):
                return K8sFile(followed, goes_on if follow else None)
            return command.Piped(in_the_end if follow else logs)

        return opened


@fallback(None, on=OSError)
def _open_file(pid: int, path: Path) -> Path | None:
    """Return the path below /proc of a file that a process has open; None if it is not open, or hidden."""
    return next((each for each in Path(f"/proc/{pid}/fd").iterdir() if each.readlink() == path), None)


def podman_facts(info: dict[str, Any], spec_dirs: tuple[Path, ...]) -> EngineFacts:
    """Read the facts from ``podman info`` (podman libpod/define/info.go), which lacks the folders of CDI specs."""
    host = info["host"]
    version = str(info["version"]["Version"])
    security = host.get("security") or {}
    rootless = bool(security.get("rootless"))
    controllers = host.get("cgroupControllers") or []
    # Outputs belong to the caller through ``--userns keep-id``, which needs more IDs than the caller's own.
    mapped = sum(ids["size"] for ids in (host.get("idMappings") or {}).get("uidmap") or [])
    usable = not rootless or mapped > 1
    name = f"Podman {version}{' (rootless)' if rootless else ''}"
    unusable = f"{name} has no subordinate user IDs: /etc/subuid has no entry for this user"
    return EngineFacts(
        "podman",
        available=usable,
        reason=f"{name} responds" if usable else unusable,
        fix=None if usable else ADD_SUBIDS,
        version=version,
        rootless=rootless,
        runtimes=(host["ociRuntime"]["name"],),
        cdi_spec_dirs=tuple(str(folder) for folder in spec_dirs),
        cdi_devices=read_specs(spec_dirs).names,
        selinux=bool(security.get("selinuxEnabled")),
        cpu_limits="cpu" in controllers,
        cores=host.get("cpus"),
        memory_limits="memory" in controllers,
        cgroup_driver=host.get("cgroupManager"),
        **PODMAN,
    )
