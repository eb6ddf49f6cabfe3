"""The slimming program's command line, which the Dockerfile's RUN calls, and what ``--measure`` prints."""

from __future__ import annotations

import argparse
import json
from fnmatch import fnmatch
from pathlib import Path

from seatrial.images.slim.program.device_code import CUBIN, containers, never_loaded, shrink_libraries
from seatrial.images.slim.program.elf import SHF_ALLOC, Elf
from seatrial.images.slim.program.files import SlimReport, cuda_copies, libraries, removable, size_of, slim_files
from seatrial.images.slim.program.unused import FEATURES, files_of, slim_unused, wanted_stubs

LEVELS = ("files", "unused", "arch")


def main() -> None:
    """Slim every site-packages below ``--root``."""
    parser = argparse.ArgumentParser(prog="slim.pyz", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="a virtual environment, or a site-packages folder")
    parser.add_argument("--level", choices=LEVELS)
    parser.add_argument("--measure", action="store_true", help="change nothing; print sizes as JSON")
    parser.add_argument("--keep-headers", action="store_true", help="the job compiles at run time")
    parser.add_argument("--unused", default="", help="features that the job does not use, comma-separated")
    parser.add_argument("--arch", default="", help="architectures to keep, e.g. 80,90")
    parser.add_argument("--above", type=Path, metavar="LIST", help="packages of a layer below, whose libraries stay")
    parser.add_argument("--keep-metadata", action="store_true", help="pip will run once more: it must see all packages")
    parser.add_argument("--wanted", action="store_true", help="change nothing; print packages whose stubs are needed")
    given = parser.parse_args()
    report = SlimReport.read(given.root / "slim.json") if given.above else SlimReport()
    sites = [path.resolve() for path in given.root.glob("lib/python3*/site-packages")] or [given.root.resolve()]
    targets = {int(text) for text in given.arch.split(",") if text}
    if given.measure:
        print(json.dumps(_measure(sites[0], targets)))
        return
    if given.wanted:
        print(*sorted({package for site in sites for package in wanted_stubs(site)}))
        return
    for site in sites:
        below = files_of(site, given.above) if given.above else set()
        slim_files(site, report, keep_headers=given.keep_headers)
        if given.level in ("unused", "arch"):
            unused = set(filter(None, given.unused.split(",")))
            slim_unused(site, unused, report, keep_metadata=given.keep_metadata)
        shrink_libraries(site, targets if given.level == "arch" else set(), report, skipped=below)
    print("\n".join(report.lines()), flush=True)
    report.write(given.root / "slim.json", {key: str(value) for key, value in vars(given).items()})


def _measure(site: Path, targets: set[int]) -> dict[str, object]:
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


if __name__ == "__main__":
    main()
