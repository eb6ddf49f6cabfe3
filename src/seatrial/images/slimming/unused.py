"""Level ``unused``: libraries that this job never calls become stubs, and packages that it never imports go."""

from __future__ import annotations

import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

from seatrial.images.slimming.elf import DT_NEEDED, DT_SONAME, mapped
from seatrial.images.slimming.files import libraries, size_of
from seatrial.images.slimming.report import Report
from seatrial.images.slimming.stub import X86_64, stub_library

#: Feature → names of the libraries that only it uses. What torch calls each for: aten/src/ATen/cuda, native/cuda and
#: torch/csrc/distributed of pytorch 2.13. Which functions of them torch refers to is read from its undefined symbols.
FEATURES: dict[str, tuple[str, ...]] = {
    "fft": ("libcufft.so.*",),
    "sparse": ("libcusparse.so.*",),
    "sparselt": ("libcusparseLt.so.*",),
    "random": ("libcurand.so.*",),
    "nvshmem": ("libnvshmem_host.so.*",),
    "nccl": ("libnccl.so.*",),
    "linalg": ("libcusolver.so.*",),
}

#: Feature → files and folders that go with it: nothing is linked to them.
_GONE: dict[str, tuple[str, ...]] = {
    "compile": ("triton", "triton-*.dist-info", "pytorch_triton*"),
    "nvshmem": ("nvidia/nvshmem/lib/nvshmem_*", "nvidia/nvshmem/lib/libnvshmem_device.*"),
    "fft": ("nvidia/*/lib/libcufftw.so.*",),
    "linalg": ("nvidia/*/lib/libcusolverMg.so.*",),
}
#: nvJitLink is loaded by these alone.
_LINKERS = {"fft", "sparse", "linalg"}
_LINKER = "libnvJitLink.so.*"

#: Who may refer to a stubbed library: what torch itself loads it for. Another package that does keeps it.
_FRAMEWORK = ("libtorch", "libc10", "libcu", "libnv", "libshm")


def slim_unused(site: Path, features: set[str], report: Report, *, keep_metadata: bool = False) -> None:
    """Take out what only these features use; with ``keep_metadata`` pip still sees a package that is gone."""
    for feature in sorted(features):
        for pattern in _GONE.get(feature, ()):
            if keep_metadata and pattern.endswith(".dist-info"):
                continue
            for path in sorted(site.glob(pattern)):
                report.add(f"unused: {feature}", size_of(path))
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(str(path))
                else:
                    path.unlink()
    wanted = [(feature, pattern) for feature in sorted(features) for pattern in FEATURES.get(feature, ())]
    if features >= _LINKERS:
        wanted.append(("linking at run time", _LINKER))
    files = libraries(site)
    users = users_of(files)
    for path in files:
        for feature, pattern in wanted:
            if fnmatch(path.name, pattern):
                _replace(path, feature, users, report)


def _replace(path: Path, feature: str, users: dict[str, set[str]], report: Report) -> None:
    elf = mapped(path)
    if not elf.sections:  # a stub already: this environment was slimmed before
        if path.name not in report.stubs:
            report.stubs.append(path.name)
        return
    sonames = elf.dynamic_names(DT_SONAME) or [path.name]
    others = strangers(users.get(sonames[0], set()))
    if others:
        report.kept[path.name] = f"{others[0]} is linked to it"
        return
    if elf.machine != X86_64:
        report.kept[path.name] = "stubs are written for x86-64 only"
        return
    why = f"{path.name} was removed from this image (image.slim): the project does not seem to use {feature}"
    stub = stub_library(sonames[0], elf.symbols(), why)
    size = path.stat().st_size
    beside = path.with_name(path.name + ".stub")
    beside.write_bytes(stub)
    os.chmod(str(beside), 0o755)
    os.replace(str(beside), str(path))
    report.stubs.append(path.name)
    report.add(f"unused: {feature}", size - len(stub))


def strangers(users: set[str]) -> list[str]:
    """Those that are no part of the framework, sorted: what they are linked to stays."""
    return sorted(user for user in users if not user.startswith(_FRAMEWORK))


def users_of(files: list[Path]) -> dict[str, set[str]]:
    """soname → names of the libraries that are linked to it."""
    users: dict[str, set[str]] = {}
    for path in files:
        for needed in mapped(path).dynamic_names(DT_NEEDED):
            users.setdefault(needed, set()).add(path.name)
    return users
