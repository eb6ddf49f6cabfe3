"""Layer 1, hardware: a GPU is on the bus, it answers, and no other driver holds it."""

from __future__ import annotations

from seatrial.doctor.check import Layer, Verdict, found, ok, skipped, unknown
from seatrial.doctor.machine import PCI_FOLDER, PCI_VENDOR, Machine

HARDWARE = Layer("hardware", "Hardware", needs="hardware.present")

#: Drivers that hand a GPU to a virtual machine; it is then not this system's to use.
PASS_THROUGH = ("vfio-pci", "pci-stub", "xen-pciback")


@HARDWARE.check("present", "A GPU is on the PCI bus", "no-gpu-on-bus", needs="")
def _present(machine: Machine) -> Verdict:
    gpus = machine.gpus_on_bus
    if gpus:
        return ok(f"{len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)} on the PCI bus: {', '.join(g.address for g in gpus)}")
    if machine.wsl:
        return ok("WSL 2: Windows's GPU behind /dev/dxg")
    if listed := machine.inventory.gpus:
        return ok(f"NVML lists {listed[0].name}; no GPU is visible on the PCI bus here (a container or sandbox)")
    if not machine.shows_bus:
        return found(
            "no-gpu-on-bus",
            [f"{PCI_FOLDER}: empty or missing"],
            message="No NVIDIA GPU, and no PCI bus is visible",
            cause="This is a container or virtual machine without GPU passthrough",
        )
    evidence = [f"{PCI_FOLDER}: no device of vendor {PCI_VENDOR} and class 03", "/dev/dxg: missing"]
    return found("no-gpu-on-bus", evidence)


@HARDWARE.check("answers", "Every GPU responds on the bus", "gpu-lost")
def _answers(machine: Machine) -> Verdict:
    if not machine.gpus_on_bus:
        return skipped("no PCI bus to query")
    evidence = [
        f"{PCI_FOLDER}/{gpu.address}/config reads ff ff ff ff" for gpu in machine.gpus_on_bus if not gpu.answers
    ]
    evidence += [fault for fault in machine.inventory.faults if "lost" in fault.lower()]
    if evidence:
        return found("gpu-lost", evidence + _xids(machine))
    return ok("every GPU responds on the bus")


def _xids(machine: Machine) -> list[str]:
    """Return the kernel's last messages on NVIDIA's GPUs, where this user may read them."""
    ended = machine.ask("dmesg", "--level", "err,warn", "--notime")
    lines = ended.stdout.splitlines() if ended is not None and ended.exit_code == 0 else []
    return [line.strip()[:200] for line in lines if "Xid" in line or "fallen off the bus" in line][-3:]


@HARDWARE.check("bound", "No other driver holds a GPU", "nouveau-bound gpu-bound-elsewhere")
def _bound(machine: Machine) -> Verdict:
    gpus = machine.gpus_on_bus
    if not gpus:
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
