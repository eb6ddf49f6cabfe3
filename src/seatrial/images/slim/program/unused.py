"""Level ``unused``: libraries that this job never calls become stubs, and packages that it never imports go."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

from seatrial.images.slim.program.elf import DT_NEEDED, DT_SONAME, mapped
from seatrial.images.slim.program.files import SlimReport, libraries, size_of, versions
from seatrial.images.slim.program.stub import X86_64, stub_library

#: Feature → names of the libraries that only it uses. What torch calls each for: aten/src/ATen/cuda, native/cuda and
#: torch/csrc/distributed of pytorch 2.13; which functions of them it refers to is read from its undefined symbols.
#: TensorFlow and JAX open them by name, and look up functions by a list of names that stands in their own libraries
#: (docs/decisions.md, 0045).
FEATURES: dict[str, tuple[str, ...]] = {
    "fft": ("libcufft.so.*",), "sparse": ("libcusparse.so.*",), "sparselt": ("libcusparseLt.so.*",),
    "random": ("libcurand.so.*",), "nvshmem": ("libnvshmem_host.so.*",), "nccl": ("libnccl.so.*",),
    "linalg": ("libcusolver.so.*",), "rnn": ("libcudnn_adv.so.*",),
}  # fmt: skip

#: Feature → files and folders that go with it: nothing is linked to them.
_GONE: dict[str, tuple[str, ...]] = {
    "compile": ("triton", "triton-*.dist-info", "pytorch_triton*"),
    "nvshmem": ("nvidia/nvshmem/lib/nvshmem_*", "nvidia/nvshmem/lib/libnvshmem_device.*"),
    "fft": ("nvidia/*/lib/libcufftw.so.*",),
    "linalg": ("nvidia/*/lib/libcusolverMg.so.*",),
    "nccl": ("nvidia/nccl/lib/libnccl_device.*",),
    # XLA calls ptxas, nvlink and fatbinary, and reads libdevice: these stay.
    "nvcc": (
        "nvidia/*/bin/nvcc*",
        "nvidia/*/bin/cudafe++",
        "nvidia/*/bin/__nvcc_device_query",
        "nvidia/*/bin/bin2c",
        "nvidia/*/bin/crt",
        "nvidia/*/nvvm/bin",
        "nvidia/*/nvvm/lib64",
        "nvidia/*/lib/libnvvm.so*",
    ),
    "libclang": ("clang", "libclang-*.dist-info"),
}
#: nvJitLink is loaded by these, and by what names it: cuDNN's engines since CUDA 13.
_LINKERS = {"fft", "sparse", "linalg"}
_LINKER = "libnvJitLink.so.*"

#: Who may refer to a stubbed library: what torch itself loads it for. Another package that does keeps it.
_FRAMEWORK = ("libtorch", "libc10", "libcu", "libnv", "libshm")


def slim_unused(site: Path, features: set[str], report: SlimReport, *, keep_metadata: bool = False) -> None:
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
    chosen = [(path, feature) for path in files for feature, pattern in wanted if fnmatch(path.name, pattern)]
    staying = set(files) - {path for path, _ in chosen}
    # All are made first: libraries of CUDA load each other, and a stub answers nothing about its neighbour.
    stubs = [(path, _stub(path, feature, users, staying, report), feature) for path, feature in chosen]
    for path, stub, feature in stubs:
        if stub is not None:
            _replace(path, stub, feature, report)


def _stub(
    path: Path, feature: str, users: dict[str, set[str]], staying: Collection[Path], report: SlimReport
) -> bytes | None:
    """Return the stub for the library; None if the library stays."""
    elf = mapped(path)
    if not elf.sections:  # a stub already: this environment was slimmed before
        if path.name not in report.stubs:
            report.stubs.append(path.name)
        return None
    sonames = elf.dynamic_names(DT_SONAME) or [path.name]
    others = strangers(users.get(sonames[0], set()))
    if others:
        report.kept[path.name] = f"{others[0]} is linked to it"
        return None
    if fnmatch(path.name, _LINKER):
        theirs = (each for each in staying if "nvidia" in each.parts)
        openers = sorted(each.name for each in theirs if mapped(each).data.find(b"libnvJitLink.so") >= 0)
        if openers:
            report.kept[path.name] = f"{openers[0]} opens it by name"
            return None
    if elf.machine != X86_64:
        report.kept[path.name] = "stubs are written for x86-64 only"
        return None
    symbols = elf.symbols()
    try:
        answers = versions(path, (each.name for each in symbols if each.section))
    except OSError as error:
        report.kept[path.name] = f"its version, which a stub would answer with, cannot be read: {error}"
        return None
    unused = f"the project shows no use of {feature}; run it with --slim none"
    why = f"{path.name} was left out of this image (image.slim): {unused}"
    return stub_library(sonames[0], symbols, why, answers)


def _replace(path: Path, stub: bytes, feature: str, report: SlimReport) -> None:
    size = path.stat().st_size
    written = path.with_name(path.name + ".stub")
    written.write_bytes(stub)
    os.chmod(str(written), 0o755)
    os.replace(str(written), str(path))
    report.stubs.append(path.name)
    report.add(f"unused: {feature}", size - len(stub))


def strangers(users: set[str]) -> list[str]:
    """Return those outside of the framework, sorted: what they are linked to stays."""
    return sorted(user for user in users if not user.startswith(_FRAMEWORK))


def users_of(files: list[Path]) -> dict[str, set[str]]:
    """soname → names of the libraries that are linked to it."""
    users: dict[str, set[str]] = {}
    for path in files:
        for needed in mapped(path).dynamic_names(DT_NEEDED):
            users.setdefault(needed, set()).add(path.name)
    return users


def files_of(site: Path, listed: Path) -> set[Path]:
    """Files of the packages that a list of ``name==version`` names; the empty set without a list."""
    if not listed.exists():
        return set()
    names = {line.partition("==")[0] for line in listed.read_text("utf-8").split()}
    return {path for path, package in _owners(site).items() if re.sub(r"==.*", "", package) in names}


def wanted_stubs(site: Path) -> set[str]:
    """Return ``name==version`` of packages with a stub that a package outside of the framework is linked to."""
    files = libraries(site)
    users = users_of(files)
    stubs = [path for path in files if not mapped(path).sections]
    wanted = [path for path in stubs if strangers(users.get(path.name, set()))]  # a stub's name is its soname
    owners = _owners(site) if wanted else {}
    return {owners[path] for path in wanted if path in owners}


def _owners(site: Path) -> dict[Path, str]:
    """File → ``name==version`` of its package, from what pip has recorded."""
    owners = {}
    for package in metadata.distributions(path=[str(site)]):
        name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()
        for file in package.files or ():
            owners[Path(os.path.normpath(str(site / str(file))))] = f"{name}=={package.version}"
    return owners
