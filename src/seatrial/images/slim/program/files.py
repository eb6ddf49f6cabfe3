"""Level ``files``: what no run reads. Tests, headers, static archives, build tools, profilers' parts.

Symbols and debug information go in device_code.py. All levels add to one report.
"""

from __future__ import annotations

import ctypes
import filecmp
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from re import Pattern

from seatrial.images.slim.program.elf import is_elf

#: Folders by path below site-packages → why. numpy's, sympy's and networkx's tests; torch's own are in torch/test.
_FOLDERS: tuple[tuple[Pattern[str], str], ...] = ((re.compile(r"(^|/)tests?$"), "tests"),)

#: ptxas, nvlink and libdevice: XLA calls them when it compiles, on every run of TensorFlow and JAX on a GPU.
_TOOLS: tuple[tuple[Pattern[str], str], ...] = ((re.compile(r"^nvidia/[^/]+/(bin|nvvm|src)$"), "CUDA build tools"),)

#: Headers: what compiles at run time reads them, and then they stay.
_HEADERS: tuple[tuple[Pattern[str], str], ...] = (
    (re.compile(r"^(torch|nvidia/[^/]+|tensorflow)/include$"), "headers"),
    (re.compile(r"^torch/share/cmake$"), "headers"),
)

_FILES: tuple[tuple[Pattern[str], str], ...] = (
    (re.compile(r"\.a$"), "static archives"),
    (re.compile(r"^torch/bin/(?!torch_shm_manager)"), "build tools of torch"),  # `import torch` asks for that one
    # A second copy of NVRTC that nothing in torch, cuDNN or cuBLAS names (strings of their libraries, CUDA 13.0).
    (re.compile(r"/libnvrtc(-builtins)?\.alt\.so"), "duplicate compilers"),
    # CUPTI's kernel-counter parts: Nsight asks for them. libcupti itself stays, libtorch_cpu is linked to it.
    (re.compile(r"/lib(nvperf_host|nvperf_target|pcsamplingutil|checkpoint)\.so"), "nvperf"),
    (re.compile(r"^triton/(FileCheck|instrumentation/libGPUInstrumentationTestLib\.so)$"), "tests"),
)

#: Tests that a package imports when it runs: numpy/testing imports numpy._core.tests._natype, and `test` is a part of
#: TensorFlow's interface (tensorflow/_api/v2/__internal__/test).
_NEEDED = re.compile(r"^(numpy/_core/tests$|tensorflow/|keras/)")

_LEAST_DUPLICATE = 1_000_000


class SlimReport:
    """Sums the bytes that were left out by reason, and names the libraries that were replaced or kept.

    The build prints it, and the image has it as slim.json.
    """

    def __init__(self) -> None:
        self.saved: dict[str, int] = {}
        self.stubs: list[str] = []
        self.kept: dict[str, str] = {}

    @classmethod
    def read(cls, path: Path) -> SlimReport:
        """Return the report of the layer below, to be continued; empty without one."""
        report = cls()
        if path.exists():
            data = json.loads(path.read_text(encoding="utf-8"))
            report.saved, report.stubs, report.kept = data["saved_bytes"], data["stubs"], data["kept"]
        return report

    def add(self, reason: str, size: int) -> None:
        if size:
            self.saved[reason] = self.saved.get(reason, 0) + size

    def lines(self) -> list[str]:
        """Return one line for each reason, the largest first."""
        rows = sorted(self.saved.items(), key=lambda row: -row[1])
        lines = [f"slim: {size / 1e6:9.1f} MB  {reason}" for reason, size in rows if size >= 50_000]
        lines += [f"slim: kept {name}: {why}" for name, why in sorted(self.kept.items())]
        return [*lines, f"slim: {sum(self.saved.values()) / 1e6:9.1f} MB in all"]

    def write(self, path: Path, arguments: dict[str, str]) -> None:
        """Write the report as JSON, with the arguments that produced it."""
        data = {"arguments": arguments, "saved_bytes": self.saved, "stubs": self.stubs, "kept": self.kept}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def slim_files(site: Path, report: SlimReport, *, keep_headers: bool) -> None:
    """Remove them from one site-packages."""
    removed, paths = removable(site, keep_headers=keep_headers)
    for reason, size in removed.items():
        report.add(reason, size)
    for path in paths:
        if path.is_dir():
            shutil.rmtree(str(path))
        else:
            path.unlink()
    _link_duplicates(site, report)


def removable(site: Path, *, keep_headers: bool) -> tuple[dict[str, int], list[Path]]:
    """(reason → bytes, the files and topmost folders that go)."""
    rules = _FOLDERS if keep_headers else _FOLDERS + _HEADERS
    if not any((site / name).is_dir() for name in ("tensorflow", "jaxlib")):
        rules += _TOOLS
    removed: dict[str, int] = {}
    paths: list[Path] = []
    for folders, chosen in ((True, rules), (False, _FILES)):
        for path, reason in _matching(site, chosen, folders=folders):
            if not any(parent in paths for parent in path.parents):
                removed[reason] = removed.get(reason, 0) + size_of(path)
                paths.append(path)
    return removed, paths


def libraries(site: Path) -> list[Path]:
    """Every shared library, symbolic links left out."""
    found = (path for path in sorted(site.rglob("*")) if ".so" in path.name and path.is_file())
    return [path for path in found if not path.is_symlink() and is_elf(path)]


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; a symbolic link has none."""
    if path.is_symlink():
        return 0
    if path.is_file():
        return path.stat().st_size
    return sum(size_of(child) for child in path.iterdir())


def _matching(site: Path, rules: tuple[tuple[Pattern[str], str], ...], *, folders: bool) -> Iterator[tuple[Path, str]]:
    for parent, names, files in os.walk(str(site)):
        for name in sorted(names if folders else files):
            path = Path(parent) / name
            shown = path.relative_to(site).as_posix()
            reason = next((reason for rule, reason in rules if rule.search(shown)), None)
            if reason and not (reason == "tests" and _NEEDED.search(shown)):
                yield path, reason


def _link_duplicates(site: Path, report: SlimReport) -> None:
    """Wheels cannot hold symbolic links, so a library and its two shorter names are three files."""
    alike: dict[tuple[Path, int], list[Path]] = {}
    for path in libraries(site):
        if path.stat().st_size >= _LEAST_DUPLICATE:
            alike.setdefault((path.parent, path.stat().st_size), []).append(path)
    for first, *others in alike.values():
        for path in others:
            if filecmp.cmp(str(first), str(path), shallow=False):
                report.add("duplicate libraries", path.stat().st_size)
                path.unlink()
                path.symlink_to(first.name)


#: Libraries of the CUDA toolkit, cuDNN, NCCL and NVSHMEM, by the part of their names before ``.so``. The driver's own
#: (libcuda, libnvidia-*) are not among them: they come from the host.
_CUDA = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|cusparseLt|nccl|nvrtc|nvJitLink|nvshmem_host|"
    r"cupti)\.so(\.|$)"
)

#: Where base images and Debian packages have them.
SYSTEM = ("/usr/local", "/usr/lib", "/usr/lib64", "/opt")

#: Smaller ones are stubs to link against, or slimmed away.
_LEAST_BYTES = 200_000


def cuda_copies(site: Path, system: Iterable[str] = SYSTEM) -> dict[str, dict[str, int]]:
    """Library → path of each copy → bytes, for those that are there more than once."""
    found: dict[str, dict[str, int]] = {}
    seen = set()
    for root in (str(site), *system):
        for parent, _, files in os.walk(root):
            for file in files:
                match = _CUDA.match(file)
                path = os.path.join(parent, file)
                if not match or os.path.islink(path) or "/stubs" in parent:
                    continue
                status = os.stat(path)
                if status.st_size < _LEAST_BYTES or (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                found.setdefault(match[1], {})[path] = status.st_size
    return {name: paths for name, paths in sorted(found.items()) if len({os.path.dirname(each) for each in paths}) > 1}


#: ``f(int *version)``
_VERSION = ("cufftGetVersion", "cusolverGetVersion", "curandGetVersion", "ncclGetVersion", "pncclGetVersion")

#: ``f(libraryPropertyType, int *value)``: 0 is the major version, 1 the minor one, 2 the patch level.
_PROPERTY = ("cufftGetProperty", "cusolverGetProperty", "curandGetProperty", "cusparseGetProperty")


def versions(path: Path, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Function → its answers, of those among ``names`` that need neither a GPU nor a handle.

    Asks the library itself, which is loaded into this process. Raises OSError where it cannot be, or refuses.
    """
    queried = {name for name in names if name in _VERSION or name in _PROPERTY}
    library = ctypes.CDLL(str(path)) if queried else None
    return {name: _answer(library, name) for name in sorted(queried)}


def _answer(library: ctypes.CDLL | None, name: str) -> tuple[int, ...]:
    function, value = getattr(library, name), ctypes.c_int()
    answers = []
    for which in ((),) if name in _VERSION else ((0,), (1,), (2,)):
        if function(*which, ctypes.byref(value)):
            raise OSError(f"{name} failed")
        answers.append(value.value)
    return tuple(answers)
