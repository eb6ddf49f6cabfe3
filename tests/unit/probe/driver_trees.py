"""Fake roots with a driver in them, as distributions and images lay it out."""

from pathlib import Path

from seatrial.probe import driver_files

VERSION = "580.159.04"
NVRM = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  (dvs-builder@U22)\n"


def write(root: Path, path: str, text: str = "") -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def link(root: Path, path: str, to: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(to)


def kernel(root: Path, gpus: int = 1, version: str = VERSION, mode: int = 0o666) -> None:
    """The loaded module and its nodes; plain files stand for the nodes, which only root can make."""
    write(root, "/proc/driver/nvidia/version", NVRM.replace(VERSION, version))
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{minor}" for minor in range(gpus))):
        write(root, f"/dev/{name}")
        (root / "dev" / name).chmod(mode)


def libraries(root: Path, folder: str, version: str = VERSION) -> None:
    """Files with their version and links by soname, as the driver's installer makes them."""
    for stem, soname in [
        ("libcuda", "1"),
        ("libnvidia-ml", "1"),
        ("libnvidia-ptxjitcompiler", "1"),
        ("libnvidia-nvvm", "4"),
    ]:
        write(root, f"{folder}/{stem}.so.{version}")
        link(root, f"{folder}/{stem}.so.{soname}", f"{stem}.so.{version}")
    link(root, f"{folder}/libcuda.so", "libcuda.so.1")
    write(root, f"{folder}/libnvidia-gpucomp.so.{version}")


def ubuntu(root: Path, gpus: int = 1, mode: int = 0o666) -> Path:
    """The driver's packages among everything else in the multiarch folder."""
    kernel(root, gpus, mode=mode)
    libraries(root, "/usr/lib/x86_64-linux-gnu")
    write(root, "/usr/lib/x86_64-linux-gnu/libc.so.6")
    write(root, "/usr/bin/nvidia-smi")
    return root


def one_folder(root: Path, gpus: int = 1) -> Path:
    """A host, or container, whose driver lies in a folder of its own."""
    kernel(root, gpus)
    libraries(root, "/usr/local/nvidia/lib64")
    write(root, "/usr/local/nvidia/bin/nvidia-smi")
    return root


def wsl(root: Path) -> Path:
    """Windows's driver under WSL2: one node, no kernel module of NVIDIA's."""
    write(root, "/dev/dxg")
    (root / "dev/dxg").chmod(0o666)
    for name in ("libcuda.so.1.1", "libnvidia-ml.so.1", "libdxcore.so", "nvidia-smi"):
        write(root, f"/usr/lib/wsl/lib/{name}")
    link(root, "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so.1.1")
    return root


def make_cache(entries: list[tuple[int, str, str]], old_format: bytes = b"") -> bytes:
    """A cache with (flags, name, path) entries; offsets count from the new format's header."""
    strings, table = b"", b""
    start = driver_files.HEADER.size + len(entries) * driver_files.ENTRY.size
    for flags, name, path in entries:
        key, value = start + len(strings), start + len(strings) + len(name) + 1
        strings += name.encode() + b"\0" + path.encode() + b"\0"
        table += driver_files.ENTRY.pack(flags, key, value, 0, 0)
    header = driver_files.HEADER.pack(driver_files.MAGIC, len(entries), len(strings), 2, 0)
    return old_format + header + table + strings
