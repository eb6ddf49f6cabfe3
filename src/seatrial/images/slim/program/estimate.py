"""Print as JSON what each level would save and the parts of a site-packages, without changing anything."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

from seatrial.images.slim.program.device_code import CUBIN, containers, never_loaded
from seatrial.images.slim.program.elf import SHF_ALLOC, Elf
from seatrial.images.slim.program.files import cuda_copies, libraries, removable, size_of
from seatrial.images.slim.program.unused import FEATURES


def measure(site: Path, targets: set[int]) -> dict[str, object]:
    """Bytes by package and by kind of file, device code by architecture, and what slimming would take."""
    packages: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for path in site.rglob("*"):
        if path.is_file() and not path.is_symlink():
            size = path.stat().st_size
            name = _package(path.relative_to(site))
            packages[name] = packages.get(name, 0) + size
            kinds[_kind(path)] = kinds.get(_kind(path), 0) + size
    removed, gone = removable(site, keep_headers=False)
    saved = {"files": sum(removed.values()), "unused": 0, "arch": 0}
    device_code: dict[str, int] = {}
    for path in libraries(site):
        if any(path == each or each in path.parents for each in gone):
            continue
        data = path.read_bytes()
        saved["files"] += sum(each.size for each in Elf(data).sections[1:] if not each.flags & SHF_ALLOC)
        if any(fnmatch(path.name, pattern) for patterns in FEATURES.values() for pattern in patterns):
            saved["unused"] += len(data)
            continue
        for entries in containers(data):
            for each in entries:
                name = f"{'sm' if each.kind == CUBIN else 'compute'}_{each.architecture}"
                device_code[name] = device_code.get(name, 0) + each.payload[1] - each.payload[0]
            if targets:
                saved["arch"] += sum(end - start for start, end in never_loaded(entries, targets))
    saved["unused"] += size_of(site / "triton") if (site / "triton").is_dir() else 0
    found = {"packages": packages, "kinds": kinds, "device_code": device_code, "saved": saved}
    return {**found, "twice": cuda_copies(site)}


def print_measure(sites: list[Path], targets: set[int]) -> None:
    """The first site-packages, as one line of JSON."""
    print(json.dumps(measure(sites[0], targets)))


def _package(path: Path) -> str:
    """``nvidia/cudnn`` of ``nvidia/cudnn/lib/…``: NVIDIA's packages share one folder."""
    if path.parts[0] == "nvidia" and len(path.parts) > 2:
        if path.parts[2] == "lib" and path.parts[1].startswith("cu1"):
            return path.name.split(".so")[0].replace("lib", "nvidia/", 1)
        return "/".join(path.parts[:2])
    return path.parts[0].split("-")[0].split(".")[0]


def _kind(path: Path) -> str:
    if ".so" in path.name:
        return "CUDA libraries" if "nvidia" in path.parts else "other libraries"
    kinds = {".py": "Python", ".pyc": "bytecode", ".a": "static archives", ".h": "headers", ".cuh": "headers"}
    return kinds.get(path.suffix, "headers" if path.suffix == ".hpp" else "other files")
