"""Every failure that doctor knows, made on purpose: each check's each finding has its reproduction in BREAKS.

A break changes one thing of a healthy machine. The check must find it, show evidence and a fix; and where the chain
breaks, no earlier link may be blamed. Breaks of real engines and images are in tests/integration/test_doctor.py too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fakes import FakeGpu
from machines import KERNEL, RECORDED, SPEC, UUID, VERSION, FakeHost, HealthGpu, docker_info, healthy, podman_info
from seatrial.doctor.check import Verdict
from seatrial.doctor.cluster import ClusterObjects
from seatrial.doctor.examine import CHAIN, Result, examine
from seatrial.doctor.inspection import InspectionRequest, LookError
from seatrial.errors import CommandTimeoutError
from seatrial.system.command import Completed
from unit.probe import driver_trees as trees

Break = Callable[[FakeHost], object]

#: (check, finding) → the break. Several for one pair carry a word behind a slash.
BREAKS: dict[tuple[str, str], Break] = {}


def breaks(check: str, finding: str) -> Callable[[Break], Break]:
    def keep(function: Break) -> Break:
        key = (check, finding)
        while key in BREAKS:
            key = (key[0] + "/", finding)
        BREAKS[key] = function
        return function

    return keep


def setting(**fields: object) -> Break:
    return lambda host: [setattr(host, name, value) for name, value in fields.items()]


# ------------------------------------------------------------------- hardware


@breaks("hardware.present", "no-gpu-on-bus")
def no_gpu(host: FakeHost) -> None:
    host.remove("/sys/bus/pci/devices/0000:10:00.0")
    host.pci("0000:00:02.0", kind="0x020000")  # a network card of NVIDIA's is no GPU
    host.nvml_error = 9


@breaks("hardware.present", "no-gpu-on-bus")
def no_bus(host: FakeHost) -> None:
    host.remove("/sys/bus")
    host.nvml_error = 12


@breaks("hardware.answers", "gpu-lost")
def off_the_bus(host: FakeHost) -> None:
    (host.root / "sys/bus/pci/devices/0000:10:00.0/config").write_bytes(b"\xff" * 64)
    host.answer("dmesg", stdout="NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.\n")


@breaks("hardware.bound", "nouveau-bound")
def nouveau(host: FakeHost) -> None:
    host.remove("/sys/bus/pci/devices/0000:10:00.0")
    host.pci("0000:10:00.0", driver="nouveau")
    host.remove("/proc/driver/nvidia/version")
    host.nvml_error = 9


breaks("hardware.bound", "gpu-bound-elsewhere")(
    lambda host: (host.remove("/sys/bus/pci/devices/0000:10:00.0"), host.pci("0000:10:00.0", driver="vfio-pci"))
)


@breaks("hardware.peer-path", "iommu-peer-traffic")
def iommu(host: FakeHost) -> None:
    host.two_gpus()
    host.write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz intel_iommu=on\n")
    host.write("/sys/kernel/iommu_groups/7/type", "DMA\n")


# --------------------------------------------------------------------- driver


@breaks("driver.loaded", "driver-not-loaded")
def module_missing(host: FakeHost) -> None:
    host.remove("/proc/driver/nvidia/version")
    host.write(f"/lib/modules/{KERNEL}/modules.dep", "kernel/fs/ext4.ko:\n")  # a kernel update without its headers
    host.nvml_error = 9


@breaks("driver.signed", "driver-not-signed")
def secure_boot(host: FakeHost) -> None:
    host.remove("/proc/driver/nvidia/version")
    host.nvml_error = 9
    host.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\x06\0\0\0\x01")
    host.answer("modinfo", "-F", "signer", "nvidia", stdout="box Secure Boot Module Signature key\n")
    host.answer("mokutil", "--list-enrolled", stdout="Subject: CN=Canonical Ltd. Master Certificate Authority\n")


@breaks("driver.update", "driver-update-pending")
def upgraded(host: FakeHost) -> None:
    host.answer("modinfo", "-F", "version", "nvidia", stdout="590.48.01\n")


@breaks("driver.started", "adapter-init-failed")
def blackwell_on_closed_modules(host: FakeHost) -> None:
    host.pci("0000:12:00.0", device="0x2b85")
    closed = trees.NVRM.replace("Open Kernel Module", "x86_64 Kernel Module")
    host.write("/proc/driver/nvidia/version", closed)


breaks("driver.started", "adapter-init-failed")(lambda host: host.pci("0000:12:00.0", device="0x1db6"))
breaks("driver.opened", "device-node-missing")(lambda host: host.gpus.append(None))


@breaks("driver.opened", "gpu-lost")
def lost(host: FakeHost) -> None:
    host.remove("/sys/bus")  # where the bus is not shown, NVML alone tells
    host.gpus.append(HealthGpu(uuid="GPU-2", minor=1, lost=True))


breaks("driver.fabric", "fabric-manager-not-ready")(lambda host: host.gpu(fabric=(2, 0)))


@breaks("driver.fabric", "fabric-manager-not-ready")
def fabric_manager_off(host: FakeHost) -> None:
    host.pci("0000:05:00.0", device="0x22a3", kind="0x068000", driver="nvidia-nvswitch")
    host.answer("systemctl", "is-active", "nvidia-fabricmanager", stdout="inactive\n", exit_code=3)


breaks("driver.compute-mode", "compute-mode-exclusive")(lambda host: host.gpu(compute_mode=2))
breaks("driver.mig", "mig-no-instances")(lambda host: host.gpu(mig_mode=(1, 1)))
breaks("driver.mig", "mig-mode-pending")(lambda host: host.gpu(mig_mode=(0, 1)))
breaks("driver.memory", "gpu-memory-held")(lambda host: host.gpu(memory_used_bytes=60 * 2**30, processes=[]))


@breaks("driver.settings", "persistence-off")
def persistence(host: FakeHost) -> None:
    host.gpu(persistence=0)


@breaks("driver.settings", "power-limit-lowered")
def power(host: FakeHost) -> None:
    host.gpu(power_limit_mw=350_000)


# ------------------------------------------------------------------ userspace


@breaks("userspace.libraries", "nvml-library-missing")
def no_libraries(host: FakeHost) -> None:
    for file in (host.root / "usr/lib/x86_64-linux-gnu").glob("lib*nvidia-ml*"):
        file.unlink()
    host.nvml_error = 12


def wsl(host: FakeHost) -> None:
    host.remove("/proc/driver/nvidia")
    host.remove("/sys/bus")
    for node in (host.root / "dev").iterdir():
        node.unlink()
    host.remove("/usr/lib/x86_64-linux-gnu")
    trees.wsl(host.root)


breaks("userspace.libraries", "wsl-libcuda")(
    lambda host: (
        wsl(host),
        host.remove("/usr/lib/wsl/lib/libcuda.so.1"),
        host.remove("/usr/lib/wsl/lib/libcuda.so.1.1"),
    )
)
breaks("userspace.wsl", "wsl-libcuda")(
    lambda host: (wsl(host), host.write("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"))
)


@breaks("userspace.versions", "driver-library-mismatch")
def libraries_upgraded(host: FakeHost) -> None:
    host.remove("/usr/lib/x86_64-linux-gnu")
    trees.libraries(host.root, "/usr/lib/x86_64-linux-gnu", "590.48.01")
    host.nvml_error = 18


breaks("userspace.nodes", "uvm-node-missing")(
    lambda host: (host.remove("/dev/nvidia-uvm"), host.write("/proc/modules", "nvidia 1 1 - Live 0x0\n"))
)


@breaks("userspace.nodes", "device-nodes-missing")
def no_nodes(host: FakeHost) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0"):
        host.remove(f"/dev/{name}")


breaks("userspace.nodes", "device-node-missing")(lambda host: (host.two_gpus(), host.remove("/dev/nvidia1")))


@breaks("userspace.access", "device-permission")
def selinux(host: FakeHost) -> None:
    host.write("/sys/fs/selinux/enforce", "1")
    host.answer("getsebool", "container_use_devices", stdout="container_use_devices --> off\n")


def cu_init(status: int | None, message: str, count: int = 0) -> Break:
    def apply(host: FakeHost) -> None:
        import json
        import sys

        host.answer(sys.executable, stdout=json.dumps([status, message, count]) + "\n")

    return apply


for _status, _id in (
    (None, "libcuda-missing"),
    (34, "libcuda-missing"),
    (46, "compute-mode-exclusive"),
    (802, "fabric-manager-not-ready"),
    (803, "driver-library-mismatch"),
    (804, "forward-compatibility"),
    (999, "cuda-unknown-error"),
    (1, "gpus-unusable"),
):
    breaks("userspace.cuda", _id)(cu_init(_status, f"cuInit: CUDA_ERROR ({_status})"))


breaks("userspace.cuda", "cuda-visible-devices")(
    lambda host: (
        host.environ.update(CUDA_VISIBLE_DEVICES="all"),
        cu_init(100, "cuInit: CUDA_ERROR_NO_DEVICE (100)")(host),
    )
)


@breaks("userspace.cuda", "mig-no-instances")
def mig_without_slices(host: FakeHost) -> None:
    """Where driver.mig stands earlier in the chain it is blamed; the check by itself must know it, too."""
    host.gpu(mig_mode=(1, 1))
    cu_init(100, "cuInit: CUDA_ERROR_NO_DEVICE (100)")(host)


@breaks("userspace.upgrades", "driver-upgraded-unattended")
def unattended(host: FakeHost) -> None:
    host.write("/etc/apt/apt.conf.d/20auto-upgrades", 'APT::Periodic::Unattended-Upgrade "1";\n')
    host.write("/etc/apt/apt.conf.d/50unattended-upgrades", '//  "nvidia-";\n')


# --------------------------------------------------------------------- engine


@breaks("engine.docker", "engine-down")
def docker_down(host: FakeHost) -> None:
    message = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
    host.docker = Completed(("docker", "info"), 1, "", message)


@breaks("engine.docker", "engine-down")
def docker_hangs(host: FakeHost) -> None:
    message = "docker did not respond within 3 s"
    host.docker = CommandTimeoutError(message, argv=["docker", "info"], exit_code_of_command=-9, stderr="")


breaks("engine.docker", "docker-is-podman")(
    setting(docker=Completed(("docker", "info"), 0, json.dumps(podman_info(), indent=2), ""))
)


@breaks("engine.docker", "docker-is-podman")
def docker_is_podman_and_is_reported(host: FakeHost) -> None:
    message = "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg."
    host.docker = Completed(("docker", "info"), 0, json.dumps(podman_info(), indent=2), message)


@breaks("engine.docker", "docker-context-missing")
def docker_context_gone(host: FakeHost) -> None:
    message = 'Failed to initialize: unable to resolve docker endpoint: context "lab": context not found: open /x.json'
    host.docker = Completed(("docker", "info"), 1, "", message)


@breaks("engine.docker", "docker-client-too-new")
def docker_client_too_new(host: FakeHost) -> None:
    message = "Error response from daemon: client version 1.99 is too new. Maximum supported API version is 1.41"
    host.docker = Completed(("docker", "info"), 1, "", message)


breaks("engine.docker", "engine-down")(setting(docker=Completed(("docker", "info"), 0, "{not json", "")))


@breaks("engine.docker", "engine-permission")
def docker_forbidden(host: FakeHost) -> None:
    message = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
    host.docker = Completed(("docker", "info"), 1, "", message)


breaks("engine.docker", "engine-missing")(setting(docker=None, on="docker"))
breaks("engine.parts", "engine-part-missing")(setting(docker=docker_info(RuncCommit={"ID": "N/A", "Expected": "N/A"})))
breaks("engine.podman", "engine-missing")(setting(on="podman"))
breaks("engine.podman", "engine-down")(
    setting(docker=None, podman=Completed(("podman", "info"), 125, "", "Error: mkdir /run/libpod: no space"))
)


@breaks("engine.podman", "engine-permission")
def podman_forbidden(host: FakeHost) -> None:
    message = "Error: unable to connect to Podman socket: dial unix /x.sock: connect: permission denied"
    host.docker, host.podman = None, Completed(("podman", "info"), 125, "", message)


@breaks("engine.podman", "rootless-no-subids")
def podman_reports_no_subids(host: FakeHost) -> None:
    message = "Error: cannot find UID/GID for user me: no subuid ranges found for user me in /etc/subuid"
    host.docker, host.podman = None, Completed(("podman", "info"), 125, "", message)


@breaks("engine.podman", "rootless-no-subids")
def podman_without_subids(host: FakeHost) -> None:
    info = podman_info()
    info["host"]["security"]["rootless"] = True
    info["host"]["idMappings"] = {"uidmap": [{"container_id": 0, "host_id": 1000, "size": 1}]}
    host.docker, host.podman = None, info


breaks("engine.any", "engine-missing")(setting(docker=None))


@breaks("engine.desktop", "docker-desktop-context")
def desktop(host: FakeHost) -> None:
    host.docker = docker_info(OperatingSystem="Docker Desktop")


@breaks("engine.snap", "docker-snap")
def snap(host: FakeHost) -> None:
    host.docker = docker_info(DockerRootDir="/var/snap/docker/common/var-lib-docker", Runtimes={"runc": {}})


breaks("engine.runtimes", "runtime-unknown")(lambda host: host.remove("/usr/bin/nvidia-container-runtime"))


# -------------------------------------------------------------------- toolkit

NO_TOOLKIT = {"Runtimes": {"runc": {"path": "runc"}}}


def without_toolkit(host: FakeHost) -> None:
    for name in ("nvidia-container-runtime-hook", "nvidia-container-runtime"):
        host.remove(f"/usr/bin/{name}")
    host.docker = docker_info(**NO_TOOLKIT)


breaks("toolkit.installed", "toolkit-missing")(without_toolkit)
breaks("toolkit.daemon-json", "daemon-json-invalid")(
    lambda host: host.write("/etc/docker/daemon.json", '{"features": {"cdi": true},}\n')
)


@breaks("toolkit.runtime", "runtime-unknown")
def edited_and_not_restarted(host: FakeHost) -> None:
    host.write("/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    host.docker = docker_info(**NO_TOOLKIT)


@breaks("toolkit.runtime", "toolkit-missing")
def installed_after_the_daemon_started(host: FakeHost) -> None:
    host.docker = docker_info(**NO_TOOLKIT)
    os.utime(host.root / "var/run/docker.pid", (1, 1))


@breaks("toolkit.features", "ctk-erases-features")
def features_dropped(host: FakeHost) -> None:
    host.write("/etc/docker/daemon.json.bak", '{"features": {"containerd-snapshotter": true}}')
    host.write("/etc/docker/daemon.json", '{"features": {"cdi": true}}')


breaks("toolkit.vendor", "cdi-no-vendor")(setting(docker=docker_info(ServerVersion="29.2.0", **NO_TOOLKIT)))
breaks("toolkit.cgroups", "no-cgroups-rootful")(
    lambda host: host.write("/etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\nno-cgroups = true\n")
)


@breaks("toolkit.cgroups", "no-cgroups-rootless")
def cgroups_on_rootless(host: FakeHost) -> None:
    host.write("/etc/nvidia-container-runtime/config.toml", "[nvidia-container-cli]\n#no-cgroups = false\n")
    host.docker = docker_info(SecurityOptions=["name=rootless", "name=cgroupns"])


@breaks("toolkit.device-rules", "device-access-lost")
def systemd_reload(host: FakeHost) -> None:
    host.docker = docker_info(CgroupDriver="systemd")


breaks("toolkit.version", "toolkit-vulnerable")(
    lambda host: host.answer(
        "nvidia-ctk", "--version", stdout="NVIDIA Container Toolkit CLI version 1.17.7\ncommit: x\n"
    )
)


@breaks("toolkit.apt", "toolkit-apt-sources")
def two_lists(host: FakeHost) -> None:
    line = "deb https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n"
    host.write("/etc/apt/sources.list.d/nvidia-container-toolkit.list", line)
    host.write("/etc/apt/sources.list.d/libnvidia-container.list", line)


breaks("toolkit.apt", "toolkit-apt-sources")(lambda host: host.write("/etc/apt/trusted.gpg.d/nvidia.gpg"))


# ------------------------------------------------------------------------ CDI


def spec(host: FakeHost, *, path: str = SPEC, version: str = VERSION, uvm: bool = True, name: str = "all") -> None:
    """A spec as nvidia-ctk writes them, of this machine."""
    root = str(host.root)  # CDI specs name absolute paths; under a fake root they are looked for below it
    assert root
    nodes = ["/dev/nvidiactl", "/dev/nvidia0", *(["/dev/nvidia-uvm"] if uvm else [])]
    library = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{version}"
    content = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}],
        "containerEdits": {"mounts": [{"hostPath": library, "containerPath": library}]},
    }
    host.write(path, yaml.safe_dump(content))


def docker_takes_cdi(host: FakeHost) -> None:
    without_toolkit(host)
    devices = [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]
    host.docker = docker_info(**NO_TOOLKIT, DiscoveredDevices=devices, CDISpecDirs=["/etc/cdi", "/var/run/cdi"])


breaks("cdi.readable", "cdi-spec-unreadable")(
    lambda host: (
        docker_takes_cdi(host),
        spec(host),
        host.write("/var/run/cdi/other.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"),
    )
)
breaks("cdi.readable", "cdi-device-conflict")(lambda host: (spec(host), spec(host, path="/var/run/cdi/again.yaml")))


@breaks("cdi.names", "cdi-unresolvable")
def podman_without_a_spec(host: FakeHost) -> None:
    host.docker, host.podman = None, podman_info()


breaks("cdi.names", "cdi-unresolvable")(lambda host: (docker_takes_cdi(host), spec(host, name="GPU-of-before")))


@breaks("cdi.names", "cdi-unresolvable")
def cdi_is_off(host: FakeHost) -> None:
    docker_takes_cdi(host)
    host.docker = docker_info(**NO_TOOLKIT, ServerVersion="27.5.1", CDISpecDirs=None)
    spec(host)


@breaks("cdi.fresh", "cdi-spec-stale")
def spec_of_an_older_driver(host: FakeHost) -> None:
    docker_takes_cdi(host)
    spec(host, version="550.54.14")


breaks("cdi.fresh", "cdi-spec-stale")(
    lambda host: (
        docker_takes_cdi(host),
        host.write("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"),
        spec(host, version="550.54.14"),
    )
)


def spec_with_hooks(host: FakeHost, *programs: str) -> None:
    """Hooks in the edits of all devices, and in those of one."""
    docker_takes_cdi(host)
    spec(host)
    written = yaml.safe_load((host.root / SPEC.lstrip("/")).read_text())
    hooks = [{"hookName": "createContainer", "path": path, "args": ["nvidia-cdi-hook"]} for path in programs]
    written["containerEdits"]["hooks"] = hooks[:1]
    written["devices"][0]["containerEdits"]["hooks"] = hooks[1:]
    host.write(SPEC, yaml.safe_dump(written))


def executable(host: FakeHost, path: str) -> None:
    host.write(path)
    host.machine().here(path).chmod(0o755)


breaks("cdi.fresh", "cdi-spec-stale")(lambda host: spec_with_hooks(host, "/usr/bin/nvidia-cdi-hook"))
breaks("cdi.fresh", "cdi-spec-stale")(
    lambda host: (
        executable(host, "/usr/bin/nvidia-cdi-hook"),
        spec_with_hooks(host, "/usr/bin/nvidia-cdi-hook", "/opt/toolkit/nvidia-cdi-hook"),
    )
)
breaks("cdi.fresh", "cdi-spec-stale")(
    lambda host: (host.write("/usr/bin/nvidia-cdi-hook"), spec_with_hooks(host, "/usr/bin/nvidia-cdi-hook"))
)
breaks("cdi.uvm", "cdi-uvm-missing-in-spec")(lambda host: (docker_takes_cdi(host), spec(host, uvm=False)))
breaks("cdi.shadowed", "cdi-spec-shadowed")(
    lambda host: (docker_takes_cdi(host), spec(host), spec(host, path="/etc/cdi/nvidia.yaml"))
)


# ---------------------------------------------------------------------- image


def image(host: FakeHost, **env: str) -> None:
    assert host.image is not None
    host.image = replace(host.image, env=env)


breaks("image.present", "subject-missing")(setting(request=InspectionRequest(container="gone")))
breaks("image.requires", "image-requires-newer-driver")(
    lambda host: image(host, NVIDIA_REQUIRE_CUDA="cuda>=13.2 brand=geforce,driver>=590,driver<591")
)


@breaks("image.variables", "nvidia-visible-devices")
def void(host: FakeHost) -> None:
    image(host, NVIDIA_VISIBLE_DEVICES="void")


breaks("image.variables", "capabilities-lack-compute")(
    lambda host: image(host, NVIDIA_DRIVER_CAPABILITIES="utility,graphics")
)
breaks("image.variables", "cuda-visible-devices")(lambda host: image(host, CUDA_VISIBLE_DEVICES="all"))


@breaks("image.python", "program-not-there")
def no_such_python(host: FakeHost) -> None:
    message = 'OCI runtime create failed: exec: "/nosuch": stat /nosuch: no such file or directory: unknown.'
    host.still = host.live = LookError("The image cannot run /nosuch", message)


breaks("image.python", "subject-does-not-start")(
    setting(still=LookError("the inspection failed with exit code 139", "Segmentation fault"))
)
breaks("image.driver-libraries", "driver-libraries-in-image")(
    lambda host: host.still["libraries"].update(driver=["/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"])
)
breaks("image.compat", "forward-compatibility")(
    lambda host: (
        host.gpu(name="NVIDIA GeForce RTX 4090"),
        host.still["libraries"].update(compat=["/usr/local/cuda-13.2/compat/libcuda.so.595.71.05"]),
    )
)


# ------------------------------------------------------------------ container


@breaks("container.starts", "gpus-not-injectable")
def no_way_in(host: FakeHost) -> None:
    from seatrial.errors import GpuContractError

    host.live = GpuContractError(
        "Docker has no way to pass GPU 0 to the container", cause="…", run="ls -l /dev/nvidia*"
    )


breaks("container.starts", "subject-does-not-start")(
    setting(live=LookError("Docker could not start the container: exit code 127", "sh: not found"))
)
breaks("container.starts", "toolkit-missing")(
    setting(live=LookError("refused", 'could not select device driver "" with capabilities: [[gpu]].'))
)


def blind(host: FakeHost, cu_init: int | None, *, libcuda: bool = True, **facts: object) -> None:
    """CUDA in the container shows nothing."""
    host.live["cuda"].update(visible=[], kernels=[], cu_init=cu_init, error=f"cuInit: ({cu_init})")
    if not libcuda:
        host.live["cuda"]["libcuda"] = None
    host.live.update(facts)


breaks("container.gpus", "device-nodes-missing")(lambda host: blind(host, None, libcuda=False, device_nodes=[]))
breaks("container.gpus", "device-node-missing")(lambda host: blind(host, 100, device_nodes=["nvidiactl", "nvidia-uvm"]))
breaks("container.gpus", "uvm-node-missing")(lambda host: blind(host, 999, device_nodes=["nvidiactl", "nvidia0"]))
breaks("container.gpus", "libcuda-missing")(lambda host: blind(host, None, libcuda=False))
breaks("container.gpus", "nvidia-visible-devices")(
    lambda host: blind(host, None, libcuda=False, device_nodes=[], env={"NVIDIA_VISIBLE_DEVICES": "void"})
)
breaks("container.gpus", "capabilities-lack-compute")(
    lambda host: blind(host, None, libcuda=False, env={"NVIDIA_DRIVER_CAPABILITIES": "utility"})
)
breaks("container.gpus", "cuda-visible-devices")(lambda host: blind(host, 100, env={"CUDA_VISIBLE_DEVICES": "7"}))
breaks("container.gpus", "mig-no-instances")(
    lambda host: blind(host, 100, nvml={**host.live["nvml"], "mig_enabled": True})
)
breaks("container.gpus", "gpus-missing")(
    lambda host: (host.two_gpus(), host.live["cuda"]["visible"].pop(), host.live["cuda"]["kernels"].pop())
)
breaks("container.gpus", "other-gpus")(
    lambda host: host.live["cuda"]["visible"][0].update(uuid="GPU-ffffffff-0000-0000-0000-000000000000")
)
breaks("container.gpus", "gpus-unusable")(lambda host: blind(host, 1))


def kernel_fails(host: FakeHost, error: str) -> None:
    host.live["cuda"]["kernels"][0].update(ok=False, error=error)


for _id, _error in (
    ("gpus-unusable", "cuCtxSynchronize: CUDA_ERROR_SOMETHING (700000)"),
    ("gpu-memory-held", "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)"),
    ("compute-mode-exclusive", "cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)"),
    ("no-kernel-image", "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU (209)"),
):
    breaks("container.kernels", _id)(lambda host, error=_error: kernel_fails(host, error))


breaks("container.peers", "no-peer-access")(lambda host: (host.two_gpus(), host.live.update(peers=[[0, 1], [1, 0]])))


@breaks("container.shm", "shared-memory-too-small")
def docker_shm(host: FakeHost) -> None:
    host.live["shm_bytes"] = 64 * 2**20


breaks("container.shm", "nccl-shared-memory")(lambda host: (host.two_gpus(), docker_shm(host)))
breaks("container.shm", "nccl-shared-memory")(lambda host: host.live.update(shm_stale=["nccl-AbCdEf"]))
breaks("container.access", "device-permission")(lambda host: host.live.update(closed_nodes=["/dev/nvidia0"]))
breaks("container.access", "device-access-lost")(
    setting(
        docker=docker_info(CgroupDriver="systemd"),
        request=InspectionRequest(container="old"),
        inspected={"HostConfig": {"DeviceRequests": [{"Count": -1}], "Devices": []}},
    )
)


# ------------------------------------------------------------------ framework


def torch(host: FakeHost, version: str | None, cuda: str | None) -> None:
    host.still["torch"] = {"version": version, "cuda": cuda}


breaks("framework.torch-build", "torch-cpu-only")(lambda host: torch(host, "2.11.0+cpu", None))


@breaks("framework.driver", "driver-too-old")
def old_driver(host: FakeHost) -> None:
    torch(host, "2.11.0+cu130", "13.0")
    host.nvml_driver = "570.86.10"
    host.remove("/usr/lib/x86_64-linux-gnu")
    trees.kernel(host.root, version="570.86.10")
    trees.libraries(host.root, "/usr/lib/x86_64-linux-gnu", "570.86.10")
    host.answer("modinfo", "-F", "version", "nvidia", stdout="570.86.10\n")


@breaks("framework.cudnn", "cudnn-versions")
def two_cudnns(host: FakeHost) -> None:
    pip = "/usr/lib/python3/site-packages/nvidia/cudnn/lib/libcudnn.so.9"
    host.still["libraries"]["cudnn"] = [pip, "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0"]
    host.still["distributions"] = {"torch": "2.11.0", "nvidia-cudnn-cu13": "9.19.0.56"}


breaks("framework.others", "tensorflow-without-cuda")(
    lambda host: host.still.update(distributions={"tensorflow": "2.20.0"})
)
breaks("framework.others", "jax-no-gpu")(
    lambda host: host.still.update(distributions={"jax": "0.9.0", "jaxlib": "0.9.0"})
)
breaks("framework.architectures", "no-kernel-image")(
    lambda host: host.types["torch"].update(arch_list=["sm_50", "sm_80", "sm_120"])
)


def types_fail(host: FakeHost, error: str) -> None:
    host.types["kernels"][3].update(ok=False, error=error)


for _id, _error in (
    ("no-kernel-image", "CUDA error: no kernel image is available for execution on the device"),
    ("cuda-out-of-memory", "CUDA out of memory. Tried to allocate 20.00 MiB."),
    ("framework-cannot-compute", "a matrix product in bfloat16 on cuda:0 differs from the CPU's"),
    ("driver-too-old", "The NVIDIA driver on your system is too old (found version 12020)."),
):
    breaks("framework.types", _id)(lambda host, error=_error: types_fail(host, error))


breaks("framework.types", "no-cuda-device")(lambda host: host.types.update(kernels=[]))


def collective(host: FakeHost, **result: object) -> None:
    host.two_gpus()
    host.collective = {"ok": False, "hung": False, "seconds": 20.0, "error": "", **result}


breaks("framework.collective", "nccl-timeout")(lambda host: collective(host, hung=True, without_p2p={"ok": True}))


@breaks("framework.collective", "nccl-shared-memory")
def collective_without_shm(host: FakeHost) -> None:
    message = (
        "Error while creating shared memory segment /dev/shm/nccl-x (size 9637888), error: No space left on device"
    )
    collective(host, error=message)


breaks("framework.collective", "nccl-error")(lambda host: collective(host, error="something else"))


# ----------------------------------------------------------------- kubernetes


def node(capacity: int = 8, allocatable: int = 8) -> dict[str, object]:
    status = {"capacity": {"nvidia.com/gpu": str(capacity)}, "allocatable": {"nvidia.com/gpu": str(allocatable)}}
    return {"metadata": {"name": "gpu-1"}, "status": status if capacity else {"capacity": {}, "allocatable": {}}}


def pod(name: str = "train", gpus: int = 1, on: str | None = "gpu-1", **status: object) -> dict[str, object]:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": containers, **({"nodeName": on} if on else {})},
        "status": {"phase": "Running" if on else "Pending", **status},
    }


CLUSTERS: dict[int, ClusterObjects] = {}


def cluster(host: FakeHost, **objects: object) -> None:
    host.write("/home/u/.kube/config", "apiVersion: v1\n")
    CLUSTERS[id(host)] = ClusterObjects("https://10.0.0.1:6443", **{"nodes": [node()], **objects})  # type: ignore[arg-type]


@breaks("kubernetes.reachable", "k8s-unreachable")
def dead_cluster(host: FakeHost) -> None:
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "x"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    host.write("/home/u/.kube/config", yaml.safe_dump(text))


breaks("kubernetes.nodes", "k8s-no-gpu-resource")(lambda host: cluster(host, nodes=[node(0)]))
breaks("kubernetes.nodes", "k8s-plugin-sees-no-gpu")(
    lambda host: cluster(host, nodes=[node(0)], pods=[pod("nvidia-device-plugin-x7", gpus=0)])
)
breaks("kubernetes.healthy", "k8s-gpu-unhealthy")(lambda host: cluster(host, nodes=[node(8, 7)]))
breaks("kubernetes.free", "k8s-insufficient-gpus")(
    lambda host: cluster(host, pods=[pod(gpus=8), pod("waits", gpus=1, on=None)])
)
breaks("kubernetes.runtime-class", "k8s-runtime-missing")(
    lambda host: cluster(
        host, events=[{"message": 'failed to get sandbox runtime: no runtime for "nvidia" is configured'}]
    )
)


@breaks("kubernetes.images", "k8s-image-pull")
def image_pull(host: FakeHost) -> None:
    waiting = {"image": "x:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    cluster(host, pods=[pod(containerStatuses=[waiting])])


QUOTA = {"metadata": {"name": "gpus"}, "status": {"hard": {"requests.nvidia.com/gpu": "8"}}}
breaks("kubernetes.namespace", "k8s-quota")(
    lambda host: cluster(
        host, quotas=[{**QUOTA, "status": {**QUOTA["status"], "used": {"requests.nvidia.com/gpu": "8"}}}]
    )
)
breaks("kubernetes.operators", "k8s-operator-down")(
    lambda host: cluster(
        host, groups=("kubeflow.org",), deployments=[{"metadata": {"name": "training-operator"}, "status": {}}]
    )
)
breaks("kubernetes.rights", "k8s-forbidden")(
    lambda host: cluster(host, rules=[{"verbs": ["get", "list"], "apiGroups": ["*"], "resources": ["*"]}])
)


# ---------------------------------------------------------------------- tests

#: Errors whose cause an earlier link shows, too, and is blamed for.
SHOWN_EARLIER = {("userspace.cuda", "mig-no-instances"), ("container.gpus", "device-node-missing")}


def look(host: FakeHost) -> list[Result]:
    machine = host.machine()
    if id(host) in CLUSTERS:
        vars(machine)["cluster"] = CLUSTERS.pop(id(host))
    return examine(machine)


@pytest.mark.parametrize("key", BREAKS, ids=lambda key: " ".join(key))
def test_break_is_found_and_named(key: tuple[str, str], tmp_path: Path) -> None:
    host = healthy(tmp_path)
    BREAKS[key](host)
    check, finding_id = key[0].rstrip("/"), key[1]
    if check == "kubernetes.reachable":
        pytest.importorskip("kr8s")
    if (check, finding_id) == ("userspace.cuda", "mig-no-instances"):
        results = {
            r.check.id: r for r in examine(host.machine(), [layer for layer in CHAIN if layer.name == "userspace"])
        }
    else:
        results = {result.check.id: result for result in look(host)}
    verdict = results[check].verdict
    findings = {finding.id: finding for finding in verdict.findings}
    assert finding_id in findings, verdict
    finding = findings[finding_id]
    assert finding.evidence and all(finding.evidence) and finding.fix and finding.cause
    assert verdict.status == {"error": "broken", "warning": "warning", "info": "ok"}[verdict.findings[0].severity]
    first = next((id for id, result in results.items() if result.verdict.status == "broken"), None)
    if verdict.status == "broken":
        assert first == check or (check, finding_id) in SHOWN_EARLIER, results[first or check].verdict
    else:
        assert first is None, results[first].verdict if first else None


def test_every_finding_of_every_check_has_a_reproduction() -> None:
    made = {(check.rstrip("/"), finding) for check, finding in BREAKS}
    promised = {(check.id, finding) for layer in CHAIN for check in layer.checks for finding in check.finds}
    assert promised - made == set()


def test_nodes_that_this_user_may_not_open_are_named(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    machine = host.machine()
    node = machine.driver.gpus[0]._replace(accessible=False, world=False)
    vars(machine)["driver"] = machine.driver._replace(gpus={0: node})
    [result] = [result for result in examine(machine) if result.check.id == "userspace.access"]
    assert result.verdict.findings[0].id == "device-permission"
    assert result.verdict.findings[0].fix == "sudo chmod a+rw /dev/nvidia0"


def test_slices_are_offered_by_name(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    parent = host.gpus[0]
    assert parent is not None
    parent.slices = [FakeGpu(uuid="MIG-1", name="NVIDIA H200 MIG 1g.18gb", parent=parent)]
    [result] = [result for result in examine(host.machine()) if result.check.id == "driver.mig"]
    assert result.verdict.status == "ok" and "--gpus 0:0" in result.verdict.line


def test_uuids_are_compared_without_their_prefix(tmp_path: Path) -> None:
    """CUDA writes GPU- before the UUID of a slice whose name does not tell that it is one."""
    host = healthy(tmp_path)
    host.live["cuda"]["visible"][0]["uuid"] = UUID.replace("GPU-", "MIG-").upper()
    [result] = [result for result in examine(host.machine()) if result.check.id == "container.gpus"]
    assert result.verdict.status == "ok"


def verdict(host: FakeHost, check: str) -> Verdict:
    [result] = [result for result in examine(host.machine()) if result.check.id == check]
    return result.verdict


def test_spec_whose_hooks_can_run_is_fresh(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    executable(host, "/usr/bin/nvidia-cdi-hook")
    spec_with_hooks(host, "/usr/bin/nvidia-cdi-hook")
    assert verdict(host, "cdi.fresh").status == "ok"


def test_docker_whose_containerd_has_no_version_has_its_parts(tmp_path: Path) -> None:
    """Return the output of Debian's Docker 28.5.2."""
    host = healthy(tmp_path)
    host.docker = json.loads((RECORDED / "docker-info-28.5.2.json").read_text())
    assert host.docker["ContainerdCommit"]["ID"] == ""
    assert verdict(host, "engine.parts").status == "ok"


@pytest.mark.parametrize("path", ["nvidia-container-runtime", "/opt/toolkit/nvidia-container-runtime"])
def test_runtime_on_the_path_of_dockerd_alone_exists(tmp_path: Path, path: str) -> None:
    host = healthy(tmp_path)
    host.remove("/usr/bin/nvidia-container-runtime")
    host.write("/opt/toolkit/nvidia-container-runtime")
    host.write("/proc/812/environ", "PATH=/usr/bin:/opt/toolkit\0")
    host.docker = docker_info(Runtimes={"nvidia": {"path": path}})
    assert verdict(host, "engine.runtimes").status == "ok"


def test_runtime_of_a_daemon_in_a_root_of_its_own_exists(tmp_path: Path) -> None:
    """Break the machine as a snap or a container does."""
    host = healthy(tmp_path)
    host.remove("/usr/bin/nvidia-container-runtime")
    host.write("/proc/812/root/usr/bin/nvidia-container-runtime")
    assert verdict(host, "engine.runtimes").status == "ok"


def test_runtime_of_a_daemon_elsewhere_is_not_judged(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    host.remove("/usr/bin/nvidia-container-runtime")
    host.remove("/proc/812")
    assert verdict(host, "engine.runtimes").status == "unknown"
