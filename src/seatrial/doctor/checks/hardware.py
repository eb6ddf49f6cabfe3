"""Layer 1, hardware: is there a GPU on the bus, does it answer, and who holds it."""

from __future__ import annotations

from seatrial.doctor.check import Check, Verdict, found, ok, skipped, unknown
from seatrial.doctor.facts import pci
from seatrial.doctor.facts.machine import Machine

#: Drivers that hand a GPU to a virtual machine; it is then not this system's to use.
PASS_THROUGH = ("vfio-pci", "pci-stub", "xen-pciback")


def _present(machine: Machine) -> Verdict:
    gpus = machine.gpus_on_bus
    if gpus:
        return ok(f"{len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)} on the PCI bus: {', '.join(g.address for g in gpus)}")
    if machine.wsl:
        return ok("WSL 2: Windows's GPU behind /dev/dxg")
    listed = machine.inventory.gpus
    if listed:
        return ok(f"NVML lists {listed[0].name}; no GPU is visible on the PCI bus here (a container or sandbox)")
    evidence = [f"{pci.FOLDER}: no device of vendor {pci.NVIDIA} and class 03", "/dev/dxg: missing"]
    if not pci.bus_is_visible(machine.root):
        return found(
            "no-gpu-on-bus",
            [f"{pci.FOLDER}: empty or missing"],
            message="No NVIDIA GPU, and no PCI bus is visible",
            cause="This is a container or virtual machine without GPU passthrough",
        )
    return found("no-gpu-on-bus", evidence)


def _answers(machine: Machine) -> Verdict:
    if not machine.gpus_on_bus:
        return skipped("no PCI bus to query")
    dead = [gpu.address for gpu in machine.gpus_on_bus if not gpu.answers]
    lost = [fault for fault in machine.inventory.faults if "lost" in fault.lower()]
    if dead or lost:
        evidence = [f"{pci.FOLDER}/{address}/config reads ff ff ff ff" for address in dead] + lost
        return found("gpu-lost", evidence + _xids(machine))
    return ok("every GPU responds on the bus")


def _xids(machine: Machine) -> list[str]:
    """The kernel's last words about NVIDIA's GPUs, where it may be asked."""
    ended = machine.ask("dmesg", "--level", "err,warn", "--notime")
    lines = ended.stdout.splitlines() if ended is not None and ended.exit_code == 0 else []
    return [line.strip()[:200] for line in lines if "Xid" in line or "fallen off the bus" in line][-3:]


def _bound(machine: Machine) -> Verdict:
    gpus = machine.gpus_on_bus
    if not gpus:
        return skipped("no GPU is visible on the PCI bus here")
    held = {gpu.driver for gpu in gpus} - {"nvidia", None}
    evidence = [f"{pci.FOLDER}/{gpu.address}/driver: {gpu.driver or 'none'}" for gpu in gpus]
    if "nouveau" in held:
        return found("nouveau-bound", evidence)
    taken = [gpu for gpu in gpus if gpu.driver in PASS_THROUGH]
    if taken:
        severity = "error" if len(taken) == len(gpus) else "warning"
        return found("gpu-bound-elsewhere", evidence, severity=severity)
    return ok("no other driver holds a GPU")


def _peer_path(machine: Machine) -> Verdict:
    """Before a hang: several GPUs talk through the IOMMU, which loses or redirects peer-to-peer writes."""
    gpus = machine.gpus_on_bus
    if len(gpus) < 2:
        return skipped("one GPU has no peer")
    groups = machine.names("/sys/kernel/iommu_groups")
    line = machine.read("/proc/cmdline")
    if line is None:
        return unknown("/proc/cmdline cannot be read: cannot tell whether the IOMMU translates peer-to-peer traffic")
    if not groups or "iommu=pt" in line or "iommu.passthrough=1" in line:
        return ok("no IOMMU translation between GPUs")
    return found(
        "iommu-peer-traffic",
        [f"{len(groups)} IOMMU groups", f"/proc/cmdline has no iommu=pt: {line.strip()[:200]}"],
    )


HARDWARE = (
    Check("hardware.present", "A GPU is on the PCI bus", ("no-gpu-on-bus",), _present),
    Check("hardware.answers", "Every GPU responds on the bus", ("gpu-lost",), _answers, needs=("hardware.present",)),
    Check(
        "hardware.bound",
        "No other driver holds a GPU",
        ("nouveau-bound", "gpu-bound-elsewhere"),
        _bound,
        needs=("hardware.present",),
    ),
    Check(
        "hardware.peer-path",
        "No IOMMU between GPUs",
        ("iommu-peer-traffic",),
        _peer_path,
        needs=("hardware.present",),
    ),
)
