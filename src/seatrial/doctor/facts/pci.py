"""NVIDIA's GPUs on the PCI bus, as the kernel lists them: there before any driver is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

#: Source: the PCI ID repository, https://pci-ids.ucw.cz: vendor 10de is NVIDIA, class 03 a display controller
#: (0300 VGA, 0302 3D), 0680 a bridge (NVSwitch).
NVIDIA = "0x10de"
DISPLAY = "0x03"
BRIDGE = "0x0680"

FOLDER = "/sys/bus/pci/devices"

#: First PCI device ID of an architecture. NVIDIA numbers them in ranges; 0x1e00 is the first of Turing, 0x2900 of
#: Blackwell. Source: the PCI ID repository, vendor 10de.
TURING = 0x1E00
BLACKWELL = 0x2900


class Device(NamedTuple):
    """One function on the bus.

    Attributes:
        address: ``0000:17:00.0``.
        device_id: the number that NVIDIA gave the chip.
        driver: kernel driver bound to it, e.g. ``nvidia``, ``nouveau``, ``vfio-pci``; None when none is.
        answers: its configuration space can be read; a GPU that fell off the bus gives only ones.
    """

    address: str
    device_id: int
    driver: str | None
    answers: bool


def nvidia_gpus(root: str = "") -> tuple[Device, ...]:
    """NVIDIA's display controllers, in bus order."""
    return _devices(root, DISPLAY)


def nvswitches(root: str = "") -> tuple[Device, ...]:
    """NVSwitch bridges: GPUs behind them need the fabric manager."""
    return _devices(root, BRIDGE)


def bus_is_visible(root: str = "") -> bool:
    """Whether this system shows a PCI bus at all; sandboxes and WSL do not."""
    try:
        return any(Path(root + FOLDER).iterdir())
    except OSError:
        return False


def _devices(root: str, kind: str) -> tuple[Device, ...]:
    folder = Path(root + FOLDER)
    try:
        addresses = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return ()
    found = []
    for address in addresses:
        entry = folder / address
        if _text(entry / "vendor") != NVIDIA or not _text(entry / "class").startswith(kind):
            continue
        driver = entry / "driver"
        name = driver.readlink().name if driver.is_symlink() else None
        found.append(Device(address, int(_text(entry / "device") or "0", 16), name, _answers(entry / "config")))
    return tuple(found)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _answers(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.read(4) != b"\xff\xff\xff\xff"
    except OSError:  # not shown here: no sign of a fault
        return True
