"""A whole machine for doctor's tests: a root with a driver in it, NVML, engines, and a container that was looked into.

``healthy()`` has nothing wrong; tests break one thing. Import as ``from machines import FakeHost, healthy``.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fakes import FakeGpu, FakeNvml, FakeNvmlError
from seatrial.backends.base import ImageFacts
from seatrial.backends.containers.injection import InjectionPlan
from seatrial.doctor.inspection import InspectionRequest
from seatrial.doctor.machine import Machine
from seatrial.errors import EngineUnavailableError
from seatrial.system.command import Completed
from seatrial.system.host import Host
from unit.probe import driver_trees as trees

RECORDED = Path(__file__).parent / "recorded"
KERNEL = "6.8.0-48-generic"
VERSION = trees.VERSION
UUID = FakeGpu().uuid
SPEC = "/var/run/cdi/nvidia.yaml"


@dataclass
class HealthGpu(FakeGpu):
    """A GPU with the settings that doctor shows."""

    persistence: int = 1
    compute_mode: int = 0
    power_limit_mw: int = 700_000
    mig_mode: tuple[int, int] = (0, 0)
    fabric: tuple[int, int] | None = None


class HealthNvml(FakeNvml):
    """NVML with those settings; a fabric only where a GPU has one."""

    driver = VERSION

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlDeviceGetMigMode(self, gpu: HealthGpu) -> list[int]:
        return [1, 1] if gpu.slices else list(gpu.mig_mode)

    def nvmlDeviceGetComputeMode(self, gpu: HealthGpu) -> int:
        return gpu.compute_mode

    def nvmlDeviceGetPersistenceMode(self, gpu: HealthGpu) -> int:
        return gpu.persistence

    def nvmlDeviceGetPowerManagementLimit(self, gpu: HealthGpu) -> int:
        return gpu.power_limit_mw

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: HealthGpu) -> int:
        return 700_000

    def c_nvmlGpuFabricInfo_t(self) -> Any:
        import pynvml

        return pynvml.c_nvmlGpuFabricInfo_t()

    def nvmlDeviceGetGpuFabricInfo(self, gpu: HealthGpu, info: Any) -> None:
        if gpu.fabric is None:
            raise FakeNvmlError(3)
        info._obj.state, info._obj.status = gpu.fabric


@dataclass
class FakeHost:
    """Parts that a test may break before it requests the machine.

    Attributes:
        answers: beginning of a command → what it prints; a command that is not there is not installed.
        docker, podman: their ``info``; None when not installed, an exception when they do not answer.
        live, still, types, collective: what was seen inside the container; see doctor/inspection.py.
    """

    root: Path
    gpus: list[HealthGpu | None]
    nvml_error: int | None = None
    nvml_driver: str = VERSION
    environ: dict[str, str] = field(default_factory=lambda: {"HOME": "/home/u"})
    answers: dict[tuple[str, ...], Completed | Exception] = field(default_factory=dict)
    docker: dict[str, Any] | Completed | Exception | None = None
    podman: dict[str, Any] | Completed | Exception | None = None
    image: ImageFacts | None = None
    live: Any = field(default_factory=dict)
    still: Any = field(default_factory=dict)
    types: Any = field(default_factory=dict)
    collective: Any = field(default_factory=dict)
    inspected: dict[str, Any] | None = None
    request: InspectionRequest = field(default_factory=InspectionRequest)
    on: str = "auto"
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def write(self, path: str, text: str = "") -> None:
        trees.write(self.root, path, text)

    def link(self, path: str, to: str) -> None:
        trees.link(self.root, path, to)

    def remove(self, path: str) -> None:
        here = self.root / path.lstrip("/")
        if here.is_dir() and not here.is_symlink():
            shutil.rmtree(here)
        else:
            here.unlink()

    def answer(self, *argv: str, stdout: str = "", stderr: str = "", exit_code: int = 0) -> None:
        self.answers[argv] = Completed(argv, exit_code, stdout, stderr)

    def gpu(self, **changes: Any) -> None:
        """Change the first GPU."""
        assert self.gpus[0] is not None
        self.gpus[0] = replace(self.gpus[0], **changes)

    def pci(self, address: str, device: str = "0x2335", driver: str | None = "nvidia", kind: str = "0x030200") -> None:
        """A device on the bus; 0x2335 is an H200."""
        folder = f"/sys/bus/pci/devices/{address}"
        for name, text in (("vendor", "0x10de"), ("class", kind), ("device", device), ("config", "\x10\xde")):
            self.write(f"{folder}/{name}", text + "\n")
        if driver is not None:
            self.link(f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}")

    def two_gpus(self) -> None:
        """A second GPU, in every place where one shows."""
        other = HealthGpu(uuid="GPU-00000000-0000-0000-0000-000000000002", minor=1)
        self.gpus.append(other)
        self.pci("0000:11:00.0")
        self.write("/dev/nvidia1")
        (self.root / "dev/nvidia1").chmod(0o666)
        cuda = self.live["cuda"]
        cuda["visible"].append({**cuda["visible"][0], "uuid": other.uuid, "index": 1})
        cuda["kernels"].append({**cuda["kernels"][0], "uuid": other.uuid})
        self.live["device_nodes"].append("nvidia1")

    def machine(self) -> Machine:
        nvml = HealthNvml(list(self.gpus), self.nvml_error)  # type: ignore[arg-type]
        nvml.driver = self.nvml_driver
        machine = Machine(
            Host(self.environ),
            root=self.root,
            run=self._run,
            pynvml=nvml,
            on=self.on,
            inspect=self.request,
            kernel=KERNEL,
        )
        seen = vars(machine.inspection)  # cached properties: a real engine would be queried
        seen["inspected"] = self.inspected
        seen["python"] = "python3"
        seen["reference"] = "image:1" if self.image is not None else None
        seen["image"] = self.image
        seen["injection"] = InjectionPlan("nvidia-runtime", "fake")
        for name in ("live", "still", "types", "collective"):
            value = getattr(self, name)
            seen[name] = _Raising(value) if isinstance(value, Exception) else value
        return machine

    def _run(self, argv: Sequence[str], *, timeout_s: float, input: str | None = None) -> Completed:
        words = tuple(argv)
        self.commands.append(words)
        for engine, info in (("docker", self.docker), ("podman", self.podman)):
            if words[:2] == (engine, "info"):
                return _info(words, info)
        for length in range(len(words), 0, -1):
            known = self.answers.get(words[:length])
            if isinstance(known, Exception):
                raise known
            if known is not None:
                return known
        raise EngineUnavailableError(f"{words[0]} cannot be run: No such file or directory")


class _Raising(dict[str, Any]):
    """Facts that could not be read: the error comes when they are looked at, as from the real property."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error


def _info(argv: tuple[str, ...], info: dict[str, Any] | Completed | Exception | None) -> Completed:
    if info is None:
        raise EngineUnavailableError(f"{argv[0]} cannot be run: No such file or directory")
    if isinstance(info, Exception):
        raise info
    return info if isinstance(info, Completed) else Completed(argv, 0, json.dumps(info))


def docker_info(**changes: Any) -> dict[str, Any]:
    """Recorded of 20.10.24, with the answers of a current Docker with the toolkit on top."""
    info: dict[str, Any] = json.loads((RECORDED / "docker-info-20.10.24.json").read_text())
    info["ServerVersion"] = "28.5.1"
    info["Runtimes"] = {"runc": {"path": "runc"}, "nvidia": {"path": "nvidia-container-runtime"}}
    info["CDISpecDirs"] = ["/etc/cdi", "/var/run/cdi"]
    info["DiscoveredDevices"] = []
    info["ContainersRunning"] = 0
    info["DockerRootDir"] = "/var/lib/docker"
    return {**info, **changes}


def podman_info(**changes: Any) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((RECORDED / "podman-info-4.3.1.json").read_text())
    return {**info, **changes}


def inside(**changes: Any) -> dict[str, Any]:
    """Return the report of probe.inside for a healthy container with one H200."""
    visible = {
        "uuid": UUID,
        "name": "NVIDIA H200",
        "index": 0,
        "compute_capability": "9.0",
        "memory_bytes": 150_754_820_096,
    }
    kernel = {"uuid": UUID, "kind": "driver", "ok": True, "ms": 55.5, "error": None, "torch": None}
    facts = {
        "python": "3.12.3",
        "executable": "/usr/bin/python3",
        "env": {},
        "device_nodes": ["nvidia-uvm", "nvidia0", "nvidiactl"],
        "closed_nodes": [],
        "libraries": {"driver": [], "cudnn": [], "compat": []},
        "distributions": {"torch": "2.11.0"},
        "torch": {"version": "2.11.0+cu130", "cuda": "13.0"},
        "memory_limit_bytes": None,
        "shm_bytes": 2 * 2**30,
        "shm_stale": [],
        "nvml": {
            "driver_version": VERSION,
            "cuda_driver_version": "13.0",
            "error": None,
            "faults": [],
            "uuids": [UUID],
            "mig_enabled": False,
            "mig_instances": 0,
        },
        "cuda": {
            "visible": [visible],
            "kernels": [kernel],
            "cuda_driver": "13.0",
            "libcuda": "libcuda.so.1",
            "cu_init": 0,
            "error": None,
        },
        "peers": [],
    }
    return copy.deepcopy({**facts, **changes})


def healthy(root: Path) -> FakeHost:
    """An Ubuntu with one H200, driver 580, Docker with the toolkit, and an image with torch for CUDA 13."""
    host = FakeHost(root, [HealthGpu()])
    trees.ubuntu(root)
    for name in ("nvidia-container-runtime-hook", "nvidia-container-runtime", "docker"):
        host.write(f"/usr/bin/{name}")
    host.write("/proc/812/comm", "dockerd\n")
    host.write("/proc/812/environ", "LANG=C.UTF-8\0PATH=/usr/local/sbin:/usr/bin\0")
    host.write("/var/run/docker.pid", "1")  # the daemon started after the toolkit was installed
    host.pci("0000:10:00.0")
    host.write("/etc/os-release", 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n')
    host.write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz iommu=pt\n")
    host.write("/proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n")
    host.write(f"/lib/modules/{KERNEL}/modules.dep", "updates/dkms/nvidia.ko.zst:\n")
    host.answer("modinfo", "-F", "version", "nvidia", stdout=VERSION + "\n")
    host.answer(sys.executable, stdout="[0, null, 1]\n")  # cuInit in a child
    host.docker = docker_info()
    host.image = ImageFacts("sha256:1", None, env={"CUDA_VERSION": "13.0.1"}, python="python3")
    host.live = inside()
    host.still = inside()
    types = ("float32", "float64", "float16", "bfloat16")
    host.types = {
        "torch": {"version": "2.11.0+cu130", "cuda": "13.0", "arch_list": ["sm_80", "sm_90", "sm_100", "sm_120"]},
        "kernels": [{"index": 0, "type": name, "ok": True, "error": None} for name in types],
        "error": None,
    }
    host.collective = {"ok": True, "hung": False, "seconds": 6.1, "error": None}
    return host
