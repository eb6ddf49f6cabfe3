"""Layer 2, the kernel driver: loaded, of one version, its GPUs started, and in a mode that lets CUDA in."""

from __future__ import annotations

from seatrial.doctor.check import Check, Verdict, found, ok, skipped, unknown, worst
from seatrial.doctor.facts import pci
from seatrial.doctor.facts.machine import Machine
from seatrial.findings.finding import BUILD_DRIVER_MODULE, CREATE_NODES
from seatrial.job.units import format_bytes
from seatrial.probe.gpu_health import COMPUTE_MODES, FABRIC_COMPLETED, FABRIC_STATES

#: Memory that nobody in sight holds, above which a leftover is suspected: a driver's own use is below 1 GiB.
HELD_BYTES = 2 * 2**30

SECURE_BOOT = "/sys/firmware/efi/efivars"


def _loaded(machine: Machine) -> Verdict:
    if machine.wsl:
        return ok("WSL 2: the driver is Windows's")
    version = machine.driver.version
    if version:
        return ok(f"driver {version} is loaded")
    if machine.inventory.driver_version:
        return ok(f"driver {machine.inventory.driver_version} responds; /proc/driver/nvidia is not visible here")
    evidence = ["/proc/driver/nvidia/version: missing"]
    modules = machine.read(f"/lib/modules/{machine.kernel}/modules.dep")
    if modules is not None:
        built = "nvidia.ko" in modules
        evidence.append(f"/lib/modules/{machine.kernel} has {'the module nvidia' if built else 'no module nvidia'}")
        if built:
            fix = f"sudo modprobe nvidia && {CREATE_NODES}"
            return found("driver-not-loaded", evidence, cause="The module is built but not loaded", fix=fix)
    return found("driver-not-loaded", evidence, fix=_install_driver(machine))


def _install_driver(machine: Machine) -> str:
    """What builds the module for the running kernel, in the words of this distribution."""
    family = f"{machine.os_release.get('ID', '')} {machine.os_release.get('ID_LIKE', '')}"
    if any(word in family for word in ("fedora", "rhel", "centos")):
        return "sudo dnf install kernel-devel-$(uname -r) && sudo dkms autoinstall && sudo modprobe nvidia"
    if "suse" in family:
        return "sudo zypper install kernel-default-devel && sudo dkms autoinstall && sudo modprobe nvidia"
    return BUILD_DRIVER_MODULE


def _signed(machine: Machine) -> Verdict:
    """Looked at when the module is not loaded: with Secure Boot on, an unknown signer is why."""
    if machine.driver.version or machine.wsl or machine.inventory.driver_version:
        return ok("the kernel accepted the module")
    if not _secure_boot(machine):
        return skipped("Secure Boot is off")
    signer = machine.ask("modinfo", "-F", "signer", "nvidia")
    if signer is None or signer.exit_code != 0:
        return unknown("Secure Boot is on, and modinfo does not report who signed the nvidia module")
    enrolled = machine.ask("mokutil", "--list-enrolled")
    if enrolled is None or enrolled.exit_code != 0:
        return unknown("Secure Boot is on, and mokutil does not report the enrolled keys")
    name = signer.stdout.strip()
    if name and name in enrolled.stdout:
        return ok(f"Secure Boot trusts the module's signer, {name}")
    return found("driver-not-signed", ["Secure Boot is on", f"signer of the module: {name or 'none'}, not enrolled"])


def _secure_boot(machine: Machine) -> bool:
    """The last byte of the EFI variable SecureBoot is 1. Source: UEFI specification, section 3.3."""
    for name in machine.names(SECURE_BOOT):
        if name.startswith("SecureBoot-"):
            text = machine.read(f"{SECURE_BOOT}/{name}")
            return text is not None and text.endswith("\x01")
    return False


def _one_version(machine: Machine) -> Verdict:
    """What is loaded against what a restart would load: a package upgrade changes the disk first."""
    loaded = machine.driver.version
    if loaded is None:
        return skipped("no NVIDIA kernel module is visible here")
    on_disk = machine.ask("modinfo", "-F", "version", "nvidia")
    version = on_disk.stdout.strip() if on_disk is not None and on_disk.exit_code == 0 else ""
    if version and version != loaded:
        return found("driver-update-pending", [f"loaded: {loaded}", f"on disk for {machine.kernel}: {version}"])
    return ok(f"the module on disk is also {loaded}" if version else f"the loaded module is {loaded}")


def _started(machine: Machine) -> Verdict:
    """NVML counts fewer GPUs than the bus has: the driver could not start them."""
    inventory = machine.inventory
    if inventory.error is not None or not machine.gpus_on_bus:
        return skipped("NVML or the PCI bus cannot be queried")
    counted = len({gpu.index for gpu in inventory.gpus}) + len(inventory.faults)
    if counted >= len(machine.gpus_on_bus):
        return ok(f"the driver initialised {counted} of {len(machine.gpus_on_bus)} GPUs")
    version = machine.read("/proc/driver/nvidia/version") or ""
    is_open = "Open Kernel Module" in version
    evidence = [f"{len(machine.gpus_on_bus)} on the bus, {counted} initialised", version.split("\n")[0]]
    old = [gpu for gpu in machine.gpus_on_bus if gpu.device_id < pci.TURING]
    new = [gpu for gpu in machine.gpus_on_bus if gpu.device_id >= pci.BLACKWELL]
    if new and not is_open:
        cause = "Blackwell GPUs need the open kernel modules, but the proprietary ones are loaded"
        return found("adapter-init-failed", evidence, cause=cause)
    if old and is_open:
        cause = "GPUs before Turing need the proprietary kernel modules, but the open ones are loaded"
        return found(
            "adapter-init-failed", evidence, cause=cause, fix="sudo apt install nvidia-driver-580 && sudo reboot"
        )
    return found(
        "adapter-init-failed", evidence, fix="sudo dmesg | grep -i nvrm   # and in the BIOS: Above 4G Decoding"
    )


def _opened(machine: Machine) -> Verdict:
    """NVML counts a GPU and cannot open it: its node is withheld, or it is lost."""
    inventory = machine.inventory
    if inventory.error is not None:
        return skipped("NVML cannot be queried")
    if not inventory.faults:
        return ok("NVML can open every GPU")
    if any("lost" in fault.lower() for fault in inventory.faults):
        return found("gpu-lost", inventory.faults)
    return found("device-node-missing", inventory.faults, message="NVML lists a GPU that it cannot open")


def _fabric(machine: Machine) -> Verdict:
    switches = bool(pci.nvswitches(machine.root)) or any(
        name.startswith("nvidia-nvswitch") for name in machine.names("/dev")
    )
    waiting = [
        gpu
        for gpu in machine.health
        if gpu.fabric_state not in (None, 0, FABRIC_COMPLETED)
        or (gpu.fabric_state == FABRIC_COMPLETED and gpu.fabric_status)
    ]
    if waiting:
        evidence = [
            f"GPU {gpu.index}: fabric {FABRIC_STATES[gpu.fabric_state or 0]}, status {gpu.fabric_status}"
            for gpu in waiting
        ]
        # Without a switch in sight this is one GPU of a board, or of a virtual machine, and CUDA itself must tell.
        return found("fabric-manager-not-ready", evidence, severity="error" if switches else "warning")
    if not switches:
        return skipped("no NVSwitch")
    service = machine.ask("systemctl", "is-active", "nvidia-fabricmanager")
    states = [gpu.fabric_state for gpu in machine.health]
    if service is not None and service.stdout.strip() in ("inactive", "failed") and FABRIC_COMPLETED not in states:
        return found("fabric-manager-not-ready", [f"nvidia-fabricmanager is {service.stdout.strip()}"])
    return ok("the NVSwitch fabric is set up")


def _modes(machine: Machine) -> Verdict:
    told = []
    for gpu in machine.health:
        if gpu.compute_mode:
            mode = COMPUTE_MODES[gpu.compute_mode] if gpu.compute_mode < len(COMPUTE_MODES) else str(gpu.compute_mode)
            # Exclusive is fine for one process; prohibited lets none in.
            severity = "error" if mode == "prohibited" or gpu.processes else "warning"
            evidence = [f"GPU {gpu.index}: compute mode {mode}, {gpu.processes} processes"]
            told.append(found("compute-mode-exclusive", evidence, severity=severity))
    if not machine.health:
        return skipped("NVML cannot be queried")
    return worst(told, "compute mode default: several processes may share a GPU; to change it: sudo nvidia-smi -c 3")


def _mig(machine: Machine) -> Verdict:
    told = []
    for gpu in machine.health:
        if gpu.mig_current != gpu.mig_pending:
            mode = "on" if gpu.mig_pending else "off"
            told.append(found("mig-mode-pending", [f"GPU {gpu.index}: MIG mode becomes {mode} at the next reset"]))
        if gpu.mig_current and not gpu.mig_instances:
            told.append(found("mig-no-instances", [f"GPU {gpu.index}: MIG mode on, 0 instances"]))
    if not any(gpu.mig_current for gpu in machine.health):
        able = any(gpu.mig_current is not None for gpu in machine.health)
        return worst(told, "MIG is off; to turn it on: sudo nvidia-smi -mig 1" if able else "no GPU here supports MIG")
    slices = [gpu for gpu in machine.inventory.gpus if gpu.mig]
    names = ", ".join(f"{gpu.mig} {gpu.name}" for gpu in slices)
    return worst(told, f"MIG is on: {names}; request a slice with --gpus {slices[0].mig}" if slices else "MIG is on")


def _memory(machine: Machine) -> Verdict:
    held = [gpu for gpu in machine.health if gpu.memory_used_bytes - gpu.processes_bytes > HELD_BYTES]
    if not machine.health:
        return skipped("NVML cannot be queried")
    if not held:
        return ok("GPU memory in use is accounted for")
    evidence = [
        f"GPU {gpu.index}: {format_bytes(gpu.memory_used_bytes)} in use, {format_bytes(gpu.processes_bytes)} of it by"
        f" {gpu.processes} processes visible here"
        for gpu in held
    ]
    return found("gpu-memory-held", evidence, severity="warning")


def _settings(machine: Machine) -> Verdict:
    """Shown with the command that changes them; never changed by doctor."""
    if not machine.health:
        return skipped("NVML cannot be queried")
    told = []
    off = [str(gpu.index) for gpu in machine.health if gpu.persistence is False]
    if off:
        told.append(found("persistence-off", [f"GPU {', '.join(off)}: persistence mode off"]))
    lowered = [
        gpu
        for gpu in machine.health
        if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < gpu.power_default_w * 0.99
    ]
    for gpu in lowered:
        told.append(
            found(
                "power-limit-lowered",
                [f"GPU {gpu.index}: {gpu.power_limit_w:g} W of {gpu.power_default_w:g} W"],
                fix=f"sudo nvidia-smi -i {gpu.index} -pl {gpu.power_default_w:g}",
            )
        )
    first = machine.health[0]
    limit = f", power limit {first.power_limit_w:g} W" if first.power_limit_w else ""
    line = f"persistence {'on' if first.persistence else 'not reported'}{limit}"
    return worst(told, f"{line}; to change them: sudo nvidia-smi -pm 0, -pl WATTS")


DRIVER = (
    Check(
        "driver.signed",
        "Secure Boot accepts the module",
        ("driver-not-signed",),
        _signed,
        needs=("hardware.present", "hardware.bound"),
    ),
    Check(
        "driver.loaded",
        "The NVIDIA kernel module is loaded",
        ("driver-not-loaded",),
        _loaded,
        needs=("hardware.present", "hardware.bound", "driver.signed"),
    ),
    Check(
        "driver.update",
        "The module on disk matches the loaded one",
        ("driver-update-pending",),
        _one_version,
        needs=("driver.loaded",),
    ),
    Check(
        "driver.started",
        "The driver initialised every GPU on the bus",
        ("adapter-init-failed",),
        _started,
        needs=("driver.loaded",),
    ),
    Check(
        "driver.opened",
        "Every listed GPU can be opened",
        ("device-node-missing", "gpu-lost"),
        _opened,
        needs=("driver.loaded",),
    ),
    Check(
        "driver.fabric",
        "The NVSwitch fabric is set up",
        ("fabric-manager-not-ready",),
        _fabric,
        needs=("driver.loaded",),
    ),
    Check(
        "driver.compute-mode",
        "The compute mode allows processes",
        ("compute-mode-exclusive",),
        _modes,
        needs=("driver.loaded",),
    ),
    Check(
        "driver.mig",
        "A GPU in MIG mode has instances",
        ("mig-no-instances", "mig-mode-pending"),
        _mig,
        needs=("driver.loaded",),
    ),
    Check(
        "driver.memory", "All GPU memory use is accounted for", ("gpu-memory-held",), _memory, needs=("driver.loaded",)
    ),
    Check(
        "driver.settings",
        "Persistence mode and power limit",
        ("persistence-off", "power-limit-lowered"),
        _settings,
        needs=("driver.loaded",),
    ),
)
