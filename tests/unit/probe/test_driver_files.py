"""Finding the driver's files under fake roots."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from seatrial.probe import driver_files

from . import driver_trees as trees

V = trees.VERSION


def names(found: driver_files.DriverFiles) -> dict[str, tuple[str, ...]]:
    return {library.path: library.names for library in found.libraries}


def test_nothing_there(tmp_path: Path) -> None:
    assert driver_files.find(str(tmp_path / "absent"), {}).libraries == ()
    found = driver_files.find(str(tmp_path), {})
    assert (found.version, found.control, found.gpus, found.libraries, found.folder) == (None, (), {}, (), None)
    printed = "\n".join(found.missing)
    for what in ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia-uvm:", "/dev/nvidia0", "libcuda.so.1"):
        assert what in printed


def test_distribution_packages(tmp_path: Path) -> None:
    found = driver_files.find(str(trees.ubuntu(tmp_path, gpus=3)), {})
    folder = "/usr/lib/x86_64-linux-gnu"
    assert found.version == V
    assert [node.path for node in found.control] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    assert list(found.gpus) == [0, 1, 2]
    assert found.folder is None  # libc lies there too
    assert names(found)[f"{folder}/libcuda.so.{V}"] == ("libcuda.so", "libcuda.so.1")
    assert names(found)[f"{folder}/libnvidia-nvvm.so.{V}"] == ("libnvidia-nvvm.so.4",)
    assert names(found)[f"{folder}/libnvidia-gpucomp.so.{V}"] == (f"libnvidia-gpucomp.so.{V}",)
    assert found.binaries == {"nvidia-smi": "/usr/bin/nvidia-smi"}
    assert found.missing == ()


def test_a_folder_of_its_own_and_one_named_by_the_loader_path(tmp_path: Path) -> None:
    found = driver_files.find(str(trees.one_folder(tmp_path)), {})
    assert found.folder == "/usr/local/nvidia/lib64" and found.missing == ()
    assert found.binaries == {"nvidia-smi": "/usr/local/nvidia/bin/nvidia-smi"}
    trees.libraries(tmp_path, "/opt/driver/lib")
    named = driver_files.find(str(tmp_path), {"LD_LIBRARY_PATH": "relative::/opt/driver/lib/"})
    assert named.folder == "/opt/driver/lib"


def test_the_linkers_cache_is_followed(tmp_path: Path) -> None:
    trees.kernel(tmp_path)
    trees.libraries(tmp_path, "/usr/lib/nvidia-580")
    flags = 0x0003 | driver_files.FLAG_ABI[os.uname().machine]
    cache = trees.make_cache([(flags, "libcuda.so.1", "/usr/lib/nvidia-580/libcuda.so.1")])
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ld.so.cache").write_bytes(cache)
    assert driver_files.find(str(tmp_path), {}).folder == "/usr/lib/nvidia-580"
    (tmp_path / "etc/ld.so.cache").write_bytes(cache[:60])
    found = driver_files.find(str(tmp_path), {})
    assert found.libraries == ()
    assert any(line.startswith("/etc/ld.so.cache: ") for line in found.missing)


def test_libraries_of_another_version_are_not_taken(tmp_path: Path) -> None:
    """Driver updated, module not reloaded: NVML would say "Driver/library version mismatch"."""
    trees.kernel(tmp_path, version="570.86.15")
    trees.libraries(tmp_path, "/usr/lib/x86_64-linux-gnu")
    found = driver_files.find(str(tmp_path), {})
    assert "libcuda" not in str(names(found))
    assert f"libcuda.so.570.86.15: in no library folder; only /usr/lib/x86_64-linux-gnu/libcuda.so.{V}" in found.missing


def test_links_through_alternatives_are_followed_and_a_dangling_one_is_no_library(tmp_path: Path) -> None:
    """Debian: absolute links over /etc/alternatives into a folder of the driver's own."""
    trees.kernel(tmp_path)
    trees.link(tmp_path, "/usr/lib64/libcuda.so.1", "libcuda.so.1.gone")
    assert driver_files.find(str(tmp_path), {}).libraries == ()
    trees.libraries(tmp_path, "/usr/lib/x86_64-linux-gnu/nvidia/current")
    trees.link(tmp_path, "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/alternatives/glx--libcuda.so.1")
    assert driver_files.find(str(tmp_path), {}).folder == "/usr/lib/x86_64-linux-gnu/nvidia/current"


def test_wsl(tmp_path: Path) -> None:
    found = driver_files.find(str(trees.wsl(tmp_path)), {})
    assert found.wsl
    assert [node.path for node in found.control] == ["/dev/dxg"]
    assert found.missing == ()
    assert names(found)["/usr/lib/wsl/lib/libcuda.so.1.1"] == ("libcuda.so.1",)


@pytest.mark.parametrize(("mode", "world"), [(0o666, True), (0o660, False), (0o604, False)])
def test_who_may_open_a_node_and_capabilities_of_mig(tmp_path: Path, mode: int, world: bool) -> None:
    trees.kernel(tmp_path, mode=mode)
    trees.write(tmp_path, "/dev/nvidia-caps/nvidia-cap12")
    found = driver_files.find(str(tmp_path), {})
    node = found.gpus[0]
    assert (node.world, node.gid, node.accessible) == (world, os.getgid(), os.access(tmp_path / "dev/nvidia0", 6))
    assert [node.path for node in found.mig_caps] == ["/dev/nvidia-caps/nvidia-cap12"]


@pytest.mark.parametrize("kernel", ["x86_64 Kernel Module", "Open Kernel Module for x86_64"])
def test_version_line(tmp_path: Path, kernel: str) -> None:
    line = (
        f"NVRM version: NVIDIA UNIX {kernel}  535.183  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc version 12.3.0\n"
    )
    trees.write(tmp_path, "/proc/driver/nvidia/version", line)
    assert driver_files.find(str(tmp_path), {}).version == "535.183"


@pytest.mark.gpu
def test_this_host() -> None:
    if not Path("/proc/driver/nvidia/version").exists():
        pytest.skip("no NVIDIA driver on this machine")
    found = driver_files.find()
    assert found.version
    assert found.gpus
    assert any(library.path.endswith(f"libcuda.so.{found.version}") for library in found.libraries)


CACHE = Path("/etc/ld.so.cache")
LDCONFIG = shutil.which("ldconfig", path="/usr/sbin:/sbin:/usr/bin")


@pytest.mark.skipif(not (CACHE.exists() and LDCONFIG), reason="this machine has no ld.so.cache or no ldconfig")
def test_agrees_with_ldconfig() -> None:
    printed = subprocess.run([LDCONFIG, "-p"], capture_output=True, text=True, check=True).stdout
    expected: dict[str, str] = {}
    for line in printed.splitlines()[1:]:
        name, arrow, path = line.strip().partition(" => ")
        if arrow and ("x86-64" in name or "AArch64" in name):
            expected.setdefault(name.split(" ")[0], path)
    assert len(expected) > 10
    assert driver_files.parse(CACHE.read_bytes()) == expected


def test_takes_this_abi_and_the_first_entry() -> None:
    data = trees.make_cache(
        [
            (0x0003, "libcuda.so.1", "/usr/lib/i386-linux-gnu/libcuda.so.1"),
            (0x0303, "libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
            (0x0303, "libcuda.so.1", "/opt/other/libcuda.so.1"),
        ],
        old_format=b"ld.so-1.7.0\0\0\0\0\0",
    )
    assert driver_files.parse(data, "x86_64") == {"libcuda.so.1": "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}


@pytest.mark.parametrize("keep", [0, 10, 47, 60, 75])
def test_a_cut_cache_is_a_value_error(keep: int) -> None:
    data = trees.make_cache([(0x0303, "libcuda.so.1", "/usr/lib/libcuda.so.1")])
    with pytest.raises(ValueError):
        driver_files.parse(data[:keep], "x86_64")
