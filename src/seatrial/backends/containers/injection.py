"""Choose how the GPUs get into a container: one strategy, chosen from facts (docs/decisions.md, 0005).

nvidia-runtime   Docker whose NVIDIA hook or runtime is there: ``--gpus '"device=GPU-…"'``
cdi              the engine resolves the devices' CDI names: ``--device nvidia.com/gpu=GPU-…``
device-nodes     neither: /dev/nvidia* and the driver's libraries, bind-mounted
none             no GPU was requested, or there is none
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.cdi import CDI_KIND
from seatrial.errors import GpuContractError
from seatrial.findings.finding import GENERATE_CDI
from seatrial.job.plan import Gpu, Injection, Mount
from seatrial.probe.driver_files import DeviceNode, DriverFiles

#: The driver's libraries and programs that training needs, as NVIDIA's own images request them. Source: NVIDIA
#: Container Toolkit documentation, "Driver Capabilities".
DEFAULT_CAPABILITIES = ("compute", "utility")
#: Folder of libraries that share their host folder with others. NVIDIA's images have it on LD_LIBRARY_PATH.
DRIVER_FOLDER = "/usr/local/nvidia/lib64"
WSL_MOUNT = "/usr/lib/wsl"

TOOLKIT = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"


@dataclass(frozen=True)
class InjectionPlan:
    """Holds the parts of a container that give it its GPUs; ``devices``: nodes, or qualified CDI names.

    ``gpus_flag``: Docker's ``--gpus`` argument with its inner quotes. ``runtime``: an OCI runtime by name. ``groups``:
    supplementary, that may open the nodes. ``driver_library_folders``: put behind the image's own LD_LIBRARY_PATH.
    """

    strategy: Injection
    reason: str
    devices: tuple[str, ...] = ()
    gpus_flag: str | None = None
    runtime: str | None = None
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    driver_library_folders: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def library_path(self, own: Mapping[str, str], from_image: Mapping[str, str]) -> dict[str, str]:
        """Return LD_LIBRARY_PATH, the driver's folder last, so that an image's forward-compatibility libraries win."""
        if not self.driver_library_folders:
            return {}
        path = own.get("LD_LIBRARY_PATH", from_image.get("LD_LIBRARY_PATH", ""))
        folders = [folder for folder in path.split(":") if folder and folder not in self.driver_library_folders]
        return {"LD_LIBRARY_PATH": ":".join([*folders, *self.driver_library_folders])}


def choose(
    facts: EngineFacts, gpus: Sequence[Gpu], driver: DriverFiles, *, capabilities: Sequence[str] = ()
) -> InjectionPlan:
    """Choose the strategy for these GPUs on this engine, with ``capabilities`` as typed; () means DEFAULT_CAPABILITIES.

    Raises GpuContractError when there is none: a run without its GPUs must not start.
    """
    if not gpus:
        return without_gpus()
    capabilities = capabilities or DEFAULT_CAPABILITIES
    # CUDA's default order is fastest first; with this it is NVML's, which the contract is written in.
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if driver.wsl:  # one node stands for all GPUs, and CUDA is what chooses among them
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in gpus)
    if not facts.ignores_gpus_flag and not (facts.desktop and not driver.wsl):
        toolkit_env = {**env, "NVIDIA_DRIVER_CAPABILITIES": ",".join(capabilities)}
        if facts.nvidia_hook or facts.desktop or "nvidia" in facts.runtimes:
            return _toolkit(facts, gpus, driver, toolkit_env)
    # From here on the toolkit's legacy hook must stay out, even where it is the default runtime and the image sets
    # NVIDIA_VISIBLE_DEVICES=all: "void" is its word for "leave this container alone".
    env["NVIDIA_VISIBLE_DEVICES"] = "void"
    if (names := _cdi_names(facts, gpus, driver)) is None:
        return _device_nodes(facts, gpus, driver, env, capabilities)
    why = f"{facts.title} ignores --gpus" if facts.ignores_gpus_flag else f"{facts.title} has no NVIDIA hook or runtime"
    groups = _groups(facts, _nodes(gpus, driver) or ())
    return InjectionPlan("cdi", f"{why}; its CDI specs list the GPUs", devices=names, env=env, groups=groups)


def on_another_machine(
    facts: EngineFacts, flag: str, devices: Sequence[str], capabilities: Sequence[str] = ()
) -> InjectionPlan:
    """Plan for an engine like this one on a machine that was only described, set up by NVIDIA's guide.

    ``flag``: for ``docker run --gpus``. ``devices``: the GPUs by name; () where any will do.
    """
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if facts.ignores_gpus_flag:
        names = devices or ([str(index) for index in range(int(flag))] if flag.isdigit() else ["all"])
        reason = "planned for another machine: Podman there needs a CDI spec (nvidia-ctk cdi generate)"
        qualified = tuple(f"{CDI_KIND}={name}" for name in names)
        return InjectionPlan("cdi", reason, devices=qualified, env={**env, "NVIDIA_VISIBLE_DEVICES": "void"})
    reason = "planned for another machine: Docker there needs the NVIDIA Container Toolkit"
    env["NVIDIA_DRIVER_CAPABILITIES"] = ",".join(capabilities or DEFAULT_CAPABILITIES)
    return InjectionPlan("nvidia-runtime", reason, gpus_flag=flag, env=env)


def without_gpus() -> InjectionPlan:
    return InjectionPlan(
        "none",
        "no GPU: NVIDIA_VISIBLE_DEVICES=void disables the NVIDIA runtime even if it is the default, and an "
        "empty CUDA_VISIBLE_DEVICES hides GPUs that --device or --privileged would expose",
        env={"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""},
    )


def _toolkit(facts: EngineFacts, gpus: Sequence[Gpu], driver: DriverFiles, env: dict[str, str]) -> InjectionPlan:
    """Use the toolkit's hook through ``--gpus``, or its runtime by name, with the device nodes.

    With the systemd cgroup driver ``systemctl daemon-reload`` resets device rules to those that the engine knows of: by
    the hook alone, NVML would fail hours into a run. https://github.com/NVIDIA/nvidia-container-toolkit/issues/48
    """
    uuids, nodes = ",".join(gpu.uuid for gpu in gpus), _nodes(gpus, driver) or ()
    is_reset = facts.cgroup_driver == "systemd" and not facts.rootless and not driver.wsl
    how: dict[str, Any] = {"gpus_flag": "all" if driver.wsl else f'"device={uuids}"', "env": env}
    if facts.desktop:
        why = "Docker Desktop's own GPU support"
    elif facts.nvidia_hook:
        why = "Docker has the NVIDIA Container Toolkit's hook; GPUs by UUID, since indices can change at a reboot"
    else:
        why = "Docker has the nvidia runtime but no hook for --gpus: GPUs through NVIDIA_VISIBLE_DEVICES"
        how = {"runtime": "nvidia", "env": {**env, "NVIDIA_VISIBLE_DEVICES": "all" if driver.wsl else uuids}}
    devices = tuple(node.path for node in nodes) if is_reset else ()
    return InjectionPlan("nvidia-runtime", why, devices=devices, groups=_groups(facts, nodes), **how)


def _cdi_names(facts: EngineFacts, gpus: Sequence[Gpu], driver: DriverFiles) -> tuple[str, ...] | None:
    """Return each GPU's qualified name, the most lasting that the engine resolves; None when one GPU has none."""
    known = set(facts.cdi_devices)
    if driver.wsl and f"{CDI_KIND}=all" in known:  # the only name there is under WSL2
        return (f"{CDI_KIND}=all",)
    names = []
    for gpu in gpus:
        candidates = [gpu.cdi_name, gpu.uuid, gpu.mig if gpu.mig else str(gpu.index)]
        qualified = [name if "=" in name else f"{CDI_KIND}={name}" for name in candidates if name]
        if (name := next((name for name in qualified if name in known), None)) is None:
            return None
        names.append(name)
    return tuple(names)


def _device_nodes(
    facts: EngineFacts, gpus: Sequence[Gpu], driver: DriverFiles, env: dict[str, str], capabilities: Sequence[str]
) -> InjectionPlan:
    nodes = _nodes(gpus, driver)
    _refuse_impossible(facts, gpus, driver, nodes)
    lacks = "no CDI device" if facts.ignores_gpus_flag else "no NVIDIA runtime and no CDI device"
    assert nodes is not None
    if driver.wsl:
        folder, mounted = f"{WSL_MOUNT}/lib", {WSL_MOUNT: WSL_MOUNT}
    elif driver.folder:
        folder, mounted = driver.folder, {driver.folder: driver.folder}
    else:  # each library under the names that programs load: a whole folder would shadow a libc
        wanted = [each for each in driver.libraries if each.capability in capabilities or "all" in capabilities]
        folder = DRIVER_FOLDER
        mounted = {f"{folder}/{name}": each.path for each in wanted for name in each.names}
    mounted |= {f"/usr/bin/{name}": path for name, path in driver.binaries.items()}
    available = {library.capability for library in driver.libraries}
    left_out = [capability for capability in capabilities if capability not in {*available, "utility", "all"}]
    lack = f"has no libraries to mount here; it needs the NVIDIA Container Toolkit: {TOOLKIT}"
    return InjectionPlan(
        "device-nodes",
        f"{facts.title} has {lacks} for these GPUs: device nodes and the driver's libraries are mounted. "
        f"{folder} is added to LD_LIBRARY_PATH, "
        "as the image's linker cache does not list it and cannot be updated on a read-only root",
        devices=tuple(node.path for node in nodes),
        mounts=tuple(Mount(source=Path(path), target=target, read_only=True) for target, path in mounted.items()),
        env=env,
        driver_library_folders=(folder,),
        groups=_groups(facts, nodes),
        warnings=tuple(f"The driver capability {capability} {lack}" for capability in left_out),
    )


def _nodes(gpus: Sequence[Gpu], driver: DriverFiles) -> tuple[DeviceNode, ...] | None:
    """Return the control nodes and each GPU's own, or None when one is not there."""
    if driver.wsl:
        return driver.control or None
    minors = [gpu.index if gpu.minor is None else gpu.minor for gpu in gpus]
    if not driver.control or not all(minor in driver.gpus for minor in minors):
        return None
    return (*driver.control, *(driver.gpus[minor] for minor in dict.fromkeys(minors)))


def _refuse_impossible(
    facts: EngineFacts, gpus: Sequence[Gpu], driver: DriverFiles, nodes: tuple[DeviceNode, ...] | None
) -> None:
    """Raise GpuContractError when mounting the device nodes by hand cannot work."""
    engine = facts.title
    need = "a CDI spec" if facts.ignores_gpus_flag else "the NVIDIA Container Toolkit or a CDI spec"
    if facts.desktop and not driver.wsl:
        message = "Docker Desktop runs containers in a virtual machine that has no GPU"
        cause = "the current Docker context selects Docker Desktop instead of the engine on this host"
        raise GpuContractError(message, cause=cause, run="docker context use default")
    if any(gpu.mig for gpu in gpus):
        message = f"A MIG slice can be passed to a container only through {need}, which {engine} does not have"
        cause = "its access rights are separate device nodes, which the toolkit selects"
        raise GpuContractError(message, cause=cause, run=GENERATE_CDI)
    absent = [line for line in driver.missing if line.startswith(("/dev/", "/proc/", "lib"))]
    if nodes is None or absent:
        names = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
        message = f"{engine} has no way to pass GPU {names} to the container"
        missing = "; ".join(absent) or "the GPU's node under /dev"
        cause = f"it needs {need}, or all of the driver's files on this host; missing: {missing}"
        raise GpuContractError(message, cause=cause, run=_first_fix(absent))
    # crun can keep the caller's groups in a rootless container, runc cannot, and Docker does not request it.
    keeps_groups = facts.group_keyword is not None and "crun" in facts.runtimes
    closed = [node.path for node in nodes if not (node.accessible if keeps_groups else node.world)]
    if facts.rootless and closed:
        cause = "this user cannot read and write the nodes"
        if not keeps_groups:
            cause = "not everyone can open the nodes, and the user's supplementary groups do not apply in the container"
        run = f"sudo chmod a+rw {shlex.join(closed)}"
        raise GpuContractError(f"Rootless {engine} cannot open {', '.join(closed)}", cause=cause, run=run)


def _first_fix(absent: Sequence[str]) -> str:
    """Return the command for the lowest layer that is missing: module, then nodes, then libraries."""
    if any(line.startswith("/proc/") for line in absent):
        return "sudo modprobe nvidia"
    if not absent or any(line.startswith("/dev/") for line in absent):
        return "sudo nvidia-modprobe -u -c 0; ls -l /dev/nvidia*"
    return "ldconfig -p | grep -E 'libcuda|libnvidia-ml'"


def _groups(facts: EngineFacts, nodes: Sequence[DeviceNode]) -> tuple[str, ...]:
    """Return the groups without which an ordinary user inside could not open the nodes."""
    if not (gids := dict.fromkeys(str(node.gid) for node in nodes if not node.world)):
        return ()
    if facts.rootless:  # the group has no number in the user namespace; crun can keep it all the same
        return (facts.group_keyword,) if facts.group_keyword else ()
    return tuple(gids)
