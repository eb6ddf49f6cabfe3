"""The dynamic linker's cache, against the one that this machine's ldconfig wrote."""

import shutil
import subprocess
from pathlib import Path

import pytest

from seatrial.probe import driver_files

from .driver_trees import make_cache

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
    data = make_cache(
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
    data = make_cache([(0x0303, "libcuda.so.1", "/usr/lib/libcuda.so.1")])
    with pytest.raises(ValueError):
        driver_files.parse(data[:keep], "x86_64")


def test_layout_is_glibcs() -> None:
    assert (driver_files.HEADER.size, driver_files.ENTRY.size) == (48, 24)
