"""Machine: the facts that checks examine, of this host, a container on it and a cluster, each read once."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.backends import table
from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.cdi import DEFAULT_SPEC_DIRS
from seatrial.backends.containers.client import as_addressed, read_info
from seatrial.backends.containers.docker_and_podman import HOOK, SYSTEM_PATH, docker_facts, podman_facts
from seatrial.backends.kubernetes.client import kubeconfigs
from seatrial.doctor import cluster
from seatrial.doctor.inspection import Inspection, InspectionRequest
from seatrial.errors import CommandTimeoutError, EngineUnavailableError, fallback
from seatrial.probe import driver_files, nvml
from seatrial.probe.driver_files import DriverFiles
from seatrial.probe.nvml import GpuHealth, Inventory
from seatrial.system import command
from seatrial.system.command import Completed
from seatrial.system.host import Host
from seatrial.system.project_files import own_table

#: Seconds for an answer of a host's program. modinfo and mokutil answer in milliseconds; a healthy engine in 0.3 s.
ANSWER_S = 3.0
#: Source: the PCI ID repository, https://pci-ids.ucw.cz: vendor 10de is NVIDIA, class 03 a display controller
#: (0300 VGA, 0302 3D), 0680 a bridge (NVSwitch).
PCI_VENDOR, PCI_DISPLAY, PCI_BRIDGE = "0x10de", "0x03", "0x0680"
PCI_FOLDER = "/sys/bus/pci/devices"
#: First PCI device ID of an architecture. NVIDIA numbers them in ranges; 0x1e00 is the first of Turing, 0x2900 of
#: Blackwell. Source: the PCI ID repository, vendor 10de.
TURING, BLACKWELL = 0x1E00, 0x2900

Run = Callable[..., Completed]


class PciDevice(NamedTuple):
    """One function on the bus, ``0000:17:00.0``.

    ``driver``: of the kernel, e.g. ``nvidia``, ``nouveau``, ``vfio-pci``; None if none is bound to it. ``answers``: its
    configuration space can be read; a GPU that fell off the bus gives only ones.
    """

    address: str
    device_id: int
    driver: str | None
    answers: bool


class Machine:
    """This host, read lazily and from several threads; every fact is read once.

    ``root``: stands for ``/`` when files are read. ``pynvml``: stands for NVML; None loads the real one. ``on``: the
    requested engine, ``auto`` for the first that works, ``local`` for a plain process. ``kernel``: the running one's
    release.
    """

    def __init__(
        self,
        host: Host | None = None,
        *,
        root: Path | str = "/",
        run: Run = command.run,
        pynvml: Any = None,
        on: str = "auto",
        kernel: str | None = None,
        inspect: InspectionRequest | None = None,
    ) -> None:
        self.host = host or Host()
        self.root = str(root).rstrip("/")
        self.on = on
        self.kernel = kernel or platform.release()
        self._run = run
        self.pynvml = pynvml
        self._answers: dict[tuple[str, ...], Completed | None] = {}
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._lock = threading.Lock()
        self._nvml = threading.Lock()
        self._thread = threading.local()
        self.inspection = Inspection(self, inspect or InspectionRequest())

    @property
    def unseen(self) -> list[str]:
        """Return the paths that this thread might not read, since it last emptied the list."""
        if not hasattr(self._thread, "unseen"):
            self._thread.unseen = []
        unseen: list[str] = self._thread.unseen
        return unseen

    def here(self, path: str) -> Path:
        return Path(self.root + path)

    def read(self, path: str) -> str | None:
        """Return a file's text, decoded with replacement; None if it is not there or closed (see ``unseen``)."""
        try:
            return self.here(path).read_bytes().decode(errors="replace")
        except PermissionError:
            self.unseen.append(path)
        except OSError:
            pass
        return None

    def exists(self, path: str) -> bool:
        return os.path.exists(self.root + path)  # noqa: PTH110  Path's raises for a name that is too long

    def names(self, folder: str) -> list[str]:
        """Return sorted names in a folder; [] if it is not there or closed (see ``unseen``)."""
        try:
            return sorted(entry.name for entry in self.here(folder).iterdir())
        except PermissionError:
            self.unseen.append(folder)
        except OSError:
            pass
        return []

    def ask(self, *argv: str, timeout_s: float = ANSWER_S) -> Completed | None:
        """Run a program once and return its answer; None if it is not installed. Raises CommandTimeoutError."""
        with self._lock:
            lock = self._locks.setdefault(argv, threading.Lock())
        with lock:
            if argv not in self._answers:
                run = fallback(None, on=EngineUnavailableError)(self._run)
                self._answers[argv] = run(argv, timeout_s=timeout_s)
            return self._answers[argv]

    def command(self, argv: Sequence[str], *, timeout_s: float, input: str | None = None) -> Completed:
        """Run a command now. Raises EngineUnavailableError and CommandTimeoutError."""
        return self._run(argv, timeout_s=timeout_s, input=input)

    @cached_property
    def wsl(self) -> bool:
        return self.exists("/dev/dxg")

    @cached_property
    def gpus_on_bus(self) -> tuple[PciDevice, ...]:
        """Return NVIDIA's display controllers as the kernel lists them, in bus order: there before any driver is."""
        return self._pci_devices(PCI_DISPLAY)

    @cached_property
    def nvswitches(self) -> bool:
        """Return True if there are NVSwitch bridges: GPUs behind them need the fabric manager."""
        nodes = (name.startswith("nvidia-nvswitch") for name in self.names("/dev"))
        return bool(self._pci_devices(PCI_BRIDGE)) or any(nodes)

    def _pci_devices(self, kind: str) -> tuple[PciDevice, ...]:
        found = []
        for address in self.names(PCI_FOLDER):
            texts = (self.read(f"{PCI_FOLDER}/{address}/{file}") for file in ("vendor", "class", "device"))
            vendor, of_kind, number = ((text or "").strip() for text in texts)
            if vendor == PCI_VENDOR and of_kind.startswith(kind):
                entry = self.here(f"{PCI_FOLDER}/{address}")
                name = (entry / "driver").readlink().name if (entry / "driver").is_symlink() else None
                found.append(PciDevice(address, int(number or "0", 16), name, _answers(entry / "config")))
        return tuple(found)

    @cached_property
    def driver(self) -> DriverFiles:
        return driver_files.find(self.root or "/", self.host.env)

    @cached_property
    def inventory(self) -> Inventory:
        with self._nvml:
            return nvml.inventory(self.pynvml)

    @cached_property
    def health(self) -> list[GpuHealth]:
        """Return the modes and limits of each GPU; [] without NVML."""
        if self.inventory.error is not None:
            return []
        with self._nvml:
            return nvml.read_health(self.pynvml if self.pynvml is not None else nvml.load())

    @cached_property
    def os_release(self) -> dict[str, str]:
        """Return ID, VERSION_ID, ID_LIKE … of /etc/os-release."""
        lines = (self.read("/etc/os-release") or self.read("/usr/lib/os-release") or "").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line)
        return {key: value.strip("\"'") for key, _, value in pairs}

    @cached_property
    def family(self) -> str:
        """Return the family of this machine's distribution: ubuntu, debian, fedora, suse, arch, or ""."""
        words = f"{self.os_release.get('ID', '')} {self.os_release.get('ID_LIKE', '')}"
        if any(word in words for word in ("fedora", "rhel", "centos", "amzn", "rocky", "almalinux")):
            return "fedora"
        return next((each for each in ("suse", "ubuntu", "debian", "arch") if each in words), "")

    def install(self, part: str, **values: str) -> str:
        """Return the commands of install.toml for this machine's distribution; "" if there are none."""
        rows: dict[str, str] = own_table(Path(__file__).with_name("install.toml"))[part]
        found = (text for families, text in rows.items() if self.family in families.split())
        return next(found, rows.get("other", "")).format(**values)

    @property
    def has_char_links(self) -> bool:
        """Return True if /dev/char has links of NVIDIA's nodes, by which systemd keeps their device rules."""
        return any(name.startswith("195:") for name in self.names("/dev/char"))

    def asks_for(self, name: str) -> bool:
        """Return True if this engine is requested."""
        return self.on in ("auto", name)

    @cached_property
    def docker_info(self) -> dict[str, Any] | EngineUnavailableError | None:
        """Return ``docker info``; the error if the daemon does not answer; None if docker is not installed."""
        return self._info("docker")

    @cached_property
    def podman_info(self) -> dict[str, Any] | EngineUnavailableError | None:
        return self._info("podman")

    def _info(self, name: str) -> dict[str, Any] | EngineUnavailableError | None:
        dialect = table.ENGINES[name]().dialect
        try:
            ended = self.ask(*self.host.client_call(name), "info", "--format", dialect.info_format)
        except CommandTimeoutError as error:
            problem = error.message[:1].upper() + error.message[1:]
            cause = "it hangs: its daemon or its storage is blocked, or the machine is out of memory"
            silent = EngineUnavailableError(problem, cause=cause, run=dialect.restart)
            return as_addressed(silent, name, self.host)
        if ended is None:
            return None
        try:
            return read_info(name, dialect.info_key, ended, self.host)
        except EngineUnavailableError as error:
            return error

    @cached_property
    def docker(self) -> EngineFacts | None:
        if not isinstance(self.docker_info, dict):
            return None
        return docker_facts(self.docker_info, hook=self.hook is not None, client=self.docker_client or Path("docker"))

    @cached_property
    def podman(self) -> EngineFacts | None:
        if not isinstance(self.podman_info, dict):
            return None
        return podman_facts(self.podman_info, tuple(self.here(str(folder)) for folder in DEFAULT_SPEC_DIRS))

    def facts(self, name: str) -> EngineFacts | None:
        """Return the facts of docker or podman; None if the engine is not installed or does not answer."""
        return self.docker if name == "docker" else self.podman

    @cached_property
    def docker_client(self) -> Path | None:
        """Return the program ``docker``, links resolved, as a path of the machine looked at; None without one."""
        for folder in ("/usr/local/bin", "/usr/bin", "/bin", "/snap/bin"):
            if self.exists(f"{folder}/docker") or self.here(f"{folder}/docker").is_symlink():
                real = os.path.realpath(self.here(f"{folder}/docker"))
                return Path(real.removeprefix(os.path.realpath(self.root or "/").rstrip("/")) or "/")
        return None

    @cached_property
    def hook(self) -> str | None:
        """Return the toolkit's hook, where dockerd looks for it; None without one."""
        names = (HOOK, "nvidia-container-toolkit")
        paths = (f"{folder}/{name}" for folder in SYSTEM_PATH.split(":") for name in names)
        return next((path for path in paths if self.exists(path)), None)

    @cached_property
    def engine(self) -> EngineFacts | None:
        """Return the engine whose containers are examined: the requested one, else the first that works, or None."""
        facts = (self.facts(name) for name in table.ENGINES if self.asks_for(name))
        return next((one for one in facts if one is not None and one.available), None)

    @property
    def kubeconfig(self) -> Path | None:
        """Return the kubeconfig that a run would read; None if there is none."""
        return next(kubeconfigs(self.host, self.root), None)

    @cached_property
    def cluster(self) -> cluster.ClusterObjects | cluster.ClusterError | None:
        """Return the cluster of the kubeconfig; the error when it does not answer; None without a kubeconfig."""
        try:
            return cluster.read(self.kubeconfig) if self.kubeconfig is not None else None
        except cluster.ClusterError as error:
            return error


@fallback(True, on=OSError)  # not shown here: no sign of a fault
def _answers(config: Path) -> bool:
    with config.open("rb") as file:
        return file.read(4) != b"\xff\xff\xff\xff"
