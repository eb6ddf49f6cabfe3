"""Layers 1 and 2: a GPU is on the bus and answers; its kernel driver is loaded and accepts CUDA."""

from __future__ import annotations

from seatrial.doctor.check import Layer, Verdict, found, ok, skipped, unknown, worst
from seatrial.doctor.machine import BLACKWELL, PCI_FOLDER, PCI_VENDOR, TURING, Machine
from seatrial.findings.finding import BUILD_DRIVER_MODULE, CREATE_NODES
from seatrial.job.units import format_bytes
from seatrial.probe.nvml import COMPUTE_MODES, FABRIC_COMPLETED, FABRIC_STATES

HARDWARE = Layer("hardware", "Hardware", needs="hardware.present")
#: Drivers that hand a GPU to a virtual machine; it is then not this system's to use.
PASS_THROUGH = ("vfio-pci", "pci-stub", "xen-pciback")


@HARDWARE.check("present", "A GPU is on the PCI bus", "no-gpu-on-bus", needs="")
def _present(machine: Machine) -> Verdict:
    if gpus := machine.gpus_on_bus:
        return ok(f"{len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)} on the PCI bus: {', '.join(g.address for g in gpus)}")
    if machine.wsl:
        return ok("WSL 2: Windows's GPU behind /dev/dxg")
    if listed := machine.inventory.gpus:
        return ok(f"NVML lists {listed[0].name}; no GPU is visible on the PCI bus here (a container or sandbox)")
    if not machine.names(PCI_FOLDER):  # a sandbox, or WSL
        message = "No NVIDIA GPU, and no PCI bus is visible"
        cause = "This is a container or virtual machine without GPU passthrough"
        return found("no-gpu-on-bus", [f"{PCI_FOLDER}: empty or missing"], message=message, cause=cause)
    evidence = [f"{PCI_FOLDER}: no device of vendor {PCI_VENDOR} and class 03", "/dev/dxg: missing"]
    return found("no-gpu-on-bus", evidence)


@HARDWARE.check("answers", "Every GPU responds on the bus", "gpu-lost")
def _answers(machine: Machine) -> Verdict:
    if not machine.gpus_on_bus:
        return skipped("no PCI bus to query")
    silent = [gpu.address for gpu in machine.gpus_on_bus if not gpu.answers]
    evidence = [f"{PCI_FOLDER}/{address}/config reads ff ff ff ff" for address in silent]
    evidence += [fault for fault in machine.inventory.faults if "lost" in fault.lower()]
    return found("gpu-lost", evidence + _xids(machine)) if evidence else ok("every GPU responds on the bus")


def _xids(machine: Machine) -> list[str]:
    """Return the kernel's last messages on NVIDIA's GPUs, where this user may read them."""
    ended = machine.ask("dmesg", "--level", "err,warn", "--notime")
    lines = ended.stdout.splitlines() if ended is not None and ended.exit_code == 0 else []
    return [line.strip()[:200] for line in lines if "Xid" in line or "fallen off the bus" in line][-3:]


@HARDWARE.check("bound", "No other driver holds a GPU", "nouveau-bound gpu-bound-elsewhere")
def _bound(machine: Machine) -> Verdict:
    if not (gpus := machine.gpus_on_bus):
        return skipped("no GPU is visible on the PCI bus here")
    evidence = [f"{PCI_FOLDER}/{gpu.address}/driver: {gpu.driver or 'none'}" for gpu in gpus]
    if any(gpu.driver == "nouveau" for gpu in gpus):
        return found("nouveau-bound", evidence)
    if taken := [gpu for gpu in gpus if gpu.driver in PASS_THROUGH]:
        return found("gpu-bound-elsewhere", evidence, severity="error" if len(taken) == len(gpus) else "warning")
    return ok("no other driver holds a GPU")


@HARDWARE.check("peer-path", "No IOMMU between GPUs", "iommu-peer-traffic")
def _peer_path(machine: Machine) -> Verdict:
    """Find the cause of hangs: several GPUs talk through the IOMMU, which loses or redirects peer-to-peer writes."""
    if len(machine.gpus_on_bus) < 2:
        return skipped("one GPU has no peer")
    groups, line = machine.names("/sys/kernel/iommu_groups"), machine.read("/proc/cmdline")
    if line is None:
        return unknown("/proc/cmdline cannot be read: whether the IOMMU translates peer-to-peer traffic is unknown")
    if not groups or "iommu=pt" in line or "iommu.passthrough=1" in line:
        return ok("no IOMMU translation between GPUs")
    evidence = [f"{len(groups)} IOMMU groups", f"/proc/cmdline has no iommu=pt: {line.strip()[:200]}"]
    return found("iommu-peer-traffic", evidence)


DRIVER = Layer("driver", "Kernel driver", needs="driver.loaded")
#: Memory that no visible process holds, above which a leftover is suspected: a driver's own use is below 1 GiB.
HELD_BYTES = 2 * 2**30

SECURE_BOOT = "/sys/firmware/efi/efivars"

_NO_NVML = skipped("NVML cannot be queried")


@DRIVER.check("signed", "Secure Boot accepts the module", "driver-not-signed", needs="hardware.present hardware.bound")
def _signed(machine: Machine) -> Verdict:
    """Examine the signer where the module is not loaded: with Secure Boot on, an unknown one is the reason."""
    if machine.driver.version or machine.wsl or machine.inventory.driver_version:
        return ok("the kernel accepted the module")
    # The last byte of the EFI variable is 1 (UEFI specification, section 3.3).
    names = (name for name in machine.names(SECURE_BOOT) if name.startswith("SecureBoot-"))
    if not any((machine.read(f"{SECURE_BOOT}/{name}") or "").endswith("\x01") for name in names):
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


@DRIVER.check(
    "loaded",
    "The NVIDIA kernel module is loaded",
    "driver-not-loaded",
    needs="hardware.present hardware.bound driver.signed",
)
def _loaded(machine: Machine) -> Verdict:
    if machine.wsl:
        return ok("WSL 2: the driver is Windows's")
    if machine.driver.version:
        return ok(f"driver {machine.driver.version} is loaded")
    if machine.inventory.driver_version:
        return ok(f"driver {machine.inventory.driver_version} responds; /proc/driver/nvidia is not visible here")
    evidence = ["/proc/driver/nvidia/version: missing"]
    if (modules := machine.read(f"/lib/modules/{machine.kernel}/modules.dep")) is not None:
        built = "nvidia.ko" in modules
        evidence.append(f"/lib/modules/{machine.kernel} has {'the module nvidia' if built else 'no module nvidia'}")
        if built:
            fix = f"sudo modprobe nvidia && {CREATE_NODES}"
            return found("driver-not-loaded", evidence, cause="The module is built but not loaded", fix=fix)
    return found("driver-not-loaded", evidence, fix=machine.install("module") or BUILD_DRIVER_MODULE)


@DRIVER.check("update", "The module on disk matches the loaded one", "driver-update-pending")
def _one_version(machine: Machine) -> Verdict:
    """Compare the loaded module with the one on disk, which a package upgrade changes first."""
    if (loaded := machine.driver.version) is None:
        return skipped("no NVIDIA kernel module is visible here")
    on_disk = machine.ask("modinfo", "-F", "version", "nvidia")
    version = on_disk.stdout.strip() if on_disk is not None and on_disk.exit_code == 0 else ""
    if version and version != loaded:
        return found("driver-update-pending", [f"loaded: {loaded}", f"on disk for {machine.kernel}: {version}"])
    return ok(f"the module on disk is also {loaded}" if version else f"the loaded module is {loaded}")


@DRIVER.check("started", "The driver initialised every GPU on the bus", "adapter-init-failed")
def _started(machine: Machine) -> Verdict:
    """Compare NVML's count with the bus: the driver could not start GPUs that NVML lacks."""
    inventory, gpus = machine.inventory, machine.gpus_on_bus
    if inventory.error is not None or not gpus:
        return skipped("NVML or the PCI bus cannot be queried")
    if (counted := len({gpu.index for gpu in inventory.gpus}) + len(inventory.faults)) >= len(gpus):
        return ok(f"the driver initialised {counted} of {len(gpus)} GPUs")
    version = machine.read("/proc/driver/nvidia/version") or ""
    is_open = "Open Kernel Module" in version
    evidence = [f"{len(gpus)} on the bus, {counted} initialised", version.split("\n")[0]]
    cause, fix = None, None
    if not is_open and any(gpu.device_id >= BLACKWELL for gpu in gpus):
        cause = "Blackwell GPUs need the open kernel modules, but the proprietary ones are loaded"
    elif is_open and any(gpu.device_id < TURING for gpu in gpus):
        cause = "GPUs before Turing need the proprietary kernel modules, but the open ones are loaded"
        fix = "sudo apt install nvidia-driver-580 && sudo reboot"
    else:
        fix = "sudo dmesg | grep -i nvrm   # and in the BIOS: Above 4G Decoding"
    return found("adapter-init-failed", evidence, cause=cause, fix=fix)


@DRIVER.check("opened", "Every listed GPU can be opened", "device-node-missing gpu-lost")
def _opened(machine: Machine) -> Verdict:
    """Find a GPU that NVML counts and cannot open: its node is withheld, or it is lost."""
    inventory = machine.inventory
    if inventory.error is not None:
        return _NO_NVML
    if not inventory.faults:
        return ok("NVML can open every GPU")
    if any("lost" in fault.lower() for fault in inventory.faults):
        return found("gpu-lost", inventory.faults)
    return found("device-node-missing", inventory.faults, message="NVML lists a GPU that it cannot open")


@DRIVER.check("fabric", "The NVSwitch fabric is set up", "fabric-manager-not-ready")
def _fabric(machine: Machine) -> Verdict:
    states = {gpu.index: (gpu.fabric_state, gpu.fabric_status) for gpu in machine.health}
    evidence = [
        f"GPU {index}: fabric {FABRIC_STATES[state or 0]}, status {status}"
        for index, (state, status) in states.items()
        if state not in (None, 0, FABRIC_COMPLETED) or (state == FABRIC_COMPLETED and status)
    ]
    if evidence:
        # No visible switch means one GPU of a board, or of a virtual machine; CUDA itself decides.
        return found("fabric-manager-not-ready", evidence, severity="error" if machine.nvswitches else "warning")
    if not machine.nvswitches:
        return skipped("no NVSwitch")
    service = machine.ask("systemctl", "is-active", "nvidia-fabricmanager")
    down = service is not None and service.stdout.strip() in ("inactive", "failed")
    if service is not None and down and all(state != FABRIC_COMPLETED for state, _ in states.values()):
        return found("fabric-manager-not-ready", [f"nvidia-fabricmanager is {service.stdout.strip()}"])
    return ok("the NVSwitch fabric is set up")


@DRIVER.check("compute-mode", "The compute mode allows processes", "compute-mode-exclusive")
def _modes(machine: Machine) -> Verdict:
    problems = []
    for gpu in machine.health:
        if gpu.compute_mode:
            mode = COMPUTE_MODES[gpu.compute_mode] if gpu.compute_mode < len(COMPUTE_MODES) else str(gpu.compute_mode)
            # Exclusive is fine for one process; prohibited allows none.
            severity = "error" if mode == "prohibited" or gpu.processes else "warning"
            evidence = [f"GPU {gpu.index}: compute mode {mode}, {gpu.processes} processes"]
            problems.append(found("compute-mode-exclusive", evidence, severity=severity))
    healthy = "compute mode default: several processes may share a GPU; to change it: sudo nvidia-smi -c 3"
    return worst(problems, healthy) if machine.health else _NO_NVML


@DRIVER.check("mig", "A GPU in MIG mode has instances", "mig-no-instances mig-mode-pending")
def _mig(machine: Machine) -> Verdict:
    problems = []
    for gpu in machine.health:
        if gpu.mig_current != gpu.mig_pending:
            mode = "on" if gpu.mig_pending else "off"
            problems.append(found("mig-mode-pending", [f"GPU {gpu.index}: MIG mode becomes {mode} at the next reset"]))
        if gpu.mig_current and not gpu.mig_instances:
            problems.append(found("mig-no-instances", [f"GPU {gpu.index}: MIG mode on, 0 instances"]))
    if not any(gpu.mig_current for gpu in machine.health):
        able = any(gpu.mig_current is not None for gpu in machine.health)
        off = "MIG is off; to turn it on: sudo nvidia-smi -mig 1"
        return worst(problems, off if able else "no GPU here supports MIG")
    slices = [gpu for gpu in machine.inventory.gpus if gpu.mig]
    names = ", ".join(f"{gpu.mig} {gpu.name}" for gpu in slices)
    on = f"MIG is on: {names}; request a slice with --gpus {slices[0].mig}" if slices else "MIG is on"
    return worst(problems, on)


@DRIVER.check("memory", "All GPU memory use is accounted for", "gpu-memory-held")
def _memory(machine: Machine) -> Verdict:
    if not machine.health:
        return _NO_NVML
    evidence = [
        f"GPU {gpu.index}: {format_bytes(gpu.memory_used_bytes)} in use, {format_bytes(gpu.processes_bytes)} of it by"
        f" {gpu.processes} processes visible here"
        for gpu in machine.health
        if gpu.memory_used_bytes - gpu.processes_bytes > HELD_BYTES
    ]
    if evidence:
        return found("gpu-memory-held", evidence, severity="warning")
    return ok("GPU memory in use is accounted for")


@DRIVER.check("settings", "Persistence mode and power limit", "persistence-off power-limit-lowered")
def _settings(machine: Machine) -> Verdict:
    """Show settings with the command that changes them; doctor never changes them."""
    if not machine.health:
        return _NO_NVML
    problems = []
    if off := [str(gpu.index) for gpu in machine.health if gpu.persistence is False]:
        problems.append(found("persistence-off", [f"GPU {', '.join(off)}: persistence mode off"]))
    for gpu in machine.health:
        limit, default = gpu.power_limit_w, gpu.power_default_w
        if limit and default and limit < default * 0.99:
            fix = f"sudo nvidia-smi -i {gpu.index} -pl {default:g}"
            problems.append(found("power-limit-lowered", [f"GPU {gpu.index}: {limit:g} W of {default:g} W"], fix=fix))
    first = machine.health[0]
    limited = f", power limit {first.power_limit_w:g} W" if first.power_limit_w else ""
    line = f"persistence {'on' if first.persistence else 'not reported'}{limited}"
    return worst(problems, f"{line}; to change them: sudo nvidia-smi -pm 0, -pl WATTS")
