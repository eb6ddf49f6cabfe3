"""The slimming program on libraries that a real compiler made, loaded by the real loader."""

from __future__ import annotations

import json
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from image_plans import write_files
from seatrial.findings.match import match_text
from seatrial.images.slim.options import slimmer_bytes
from seatrial.images.slim.program.compact import PAGE, compact
from seatrial.images.slim.program.device_code import CUBIN, PTX, Entry, containers, never_loaded
from seatrial.images.slim.program.elf import DT_SONAME, Elf
from seatrial.images.slim.program.files import cuda_copies, removable
from seatrial.images.slim.program.stub import stub_library
from tables import cases, constant

gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
stubs = pytest.mark.skipif(not shutil.which("gcc") or platform.machine() != "x86_64", reason="stubs are for x86-64")


def fatbin(*entries: tuple[int, int, bytes]) -> bytes:
    """A container as CUDA 13.0 lays it out: (kind, architecture, payload) each."""
    body = b""
    for kind, architecture, payload in entries:
        header = struct.pack("<HHIQIIHHI", kind, 0x101, 64, len(payload), 0, 0, 0, 1, architecture)
        body += header + bytes(64 - len(header)) + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def compiled(folder: Path, name: str, source: str, *options: str) -> Path:
    (folder / "code.c").write_text(source)
    target = folder / name
    argv = ["gcc", "-g", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(target), str(folder / "code.c"), *options]
    subprocess.run(argv, check=True)
    return target


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library with a fat binary of three architectures, a pointer to it, and a large .bss behind it all."""
    data = fatbin((CUBIN, 80, b"\x08" * 3 * PAGE), (CUBIN, 90, b"\x09" * 3 * PAGE), (PTX, 100, b"\x0a" * 9 * PAGE))
    (tmp_path / "fat.bin").write_bytes(data)
    return compiled(
        tmp_path,
        "libfat.so.1",
        '__asm__(".section .nv_fatbin,\\"a\\"\\n.balign 8\\n.globl fat\\nfat: .incbin \\"'
        + str(tmp_path / "fat.bin")
        + '\\"\\n.previous");'
        "extern const unsigned char fat[]; const unsigned char *const pointer = fat; static char zeros[200000];"
        "int sum(int from, int to) { int all = 0; for (int at = from; at < to; at++) all += pointer[at]; return all; }"
        "int bss(void) { int all = 0; for (int at = 0; at < 200000; at++) all += zeros[at]; return all; }"
        "int add(int a, int b) { return a + b; }",
    )


@gcc
def test_a_compacted_library_loads_and_reads_the_same(library: Path) -> None:
    before = library.read_bytes()
    (entries,) = containers(before)
    empty = never_loaded(entries, {90})
    assert [entry.architecture for entry in entries] == [80, 90, 100]
    start = entries[1].payload[0] - entries[0].payload[0] + 16 + 64
    code = (
        f"import ctypes; l = ctypes.CDLL({str(library)!r}); "
        f"print(l.add(2, 3), l.bss(), l.sum({start}, {start + 3 * PAGE}), l.sum(80, {80 + 3 * PAGE}))"
    )
    assert python(code).stdout == f"5 0 {9 * 3 * PAGE} {8 * 3 * PAGE}\n"
    symbols, cut = compact(library, empty)
    saved = symbols + cut
    assert symbols > 0 < cut
    after = python(code)
    assert after.stdout == f"5 0 {9 * 3 * PAGE} 0\n", after.stderr  # what was kept is there, the rest reads as zeros
    assert saved >= len(before) - library.stat().st_size > 8 * PAGE
    names = [Elf(library.read_bytes()).section_name(each) for each in Elf(library.read_bytes()).sections]
    assert ".dynsym" in names
    assert ".symtab" not in names
    assert not [name for name in names if name.startswith(".debug")]


@gcc
def test_compacting_twice_changes_nothing_more(library: Path) -> None:
    compact(library, [])
    once = library.read_bytes()
    assert compact(library, []) == (0, 0)
    assert library.read_bytes() == once


@cases("entries", "targets", "kept")
def test_what_the_driver_would_load_is_kept(entries: list[tuple[int, int]], targets: set[int], kept: list[int]) -> None:
    rows = [Entry(kind, architecture, (at, at + 1)) for at, (kind, architecture) in enumerate(entries)]
    gone = never_loaded(rows, set(targets))
    assert [row.architecture for row in rows if row.payload not in gone] == list(kept)


def test_what_only_looks_like_a_fat_binary_is_left_alone() -> None:
    real = fatbin((CUBIN, 90, b"x" * 32))
    broken = real[:16] + b"\xff\xff" + real[18:]
    assert containers(b"....." + real[:40]) == []
    assert containers(b"....." + broken) == []
    assert len(containers(b"....." + real + broken + real)) == 2


@stubs
def test_stub_satisfies_the_loader_and_names_the_call(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    versions.write_text("libwork.so.1 { global: *; };\n")
    real = compiled(
        tmp_path,
        "libwork.so.1",
        "int work(int a) { return a; } int table[7] = {1};",
        f"-Wl,--version-script={versions}",
    )
    (tmp_path / "user.c").write_text(
        "extern int work(int); extern int table[]; int use(int a) { return work(a) + table[0]; }"
    )
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libuser.so"), str(tmp_path / "user.c"), str(real)], check=True
    )
    elf = Elf(real.read_bytes())
    code = (
        f"import ctypes; ctypes.CDLL({str(real)!r}); l = ctypes.CDLL({str(tmp_path / 'libuser.so')!r}); "
        "print('loaded', flush=True); print(l.use(41))"
    )
    assert python(code).stdout == "loaded\n42\n"
    real.write_bytes(stub_library(elf.dynamic_names(DT_SONAME)[0], elf.symbols(), "it was left out", {}))
    ended = python(code)
    assert ended.stdout == "loaded\n"
    assert ended.returncode == -6
    assert ended.stderr == "seatrial: work was called, but it was left out\n"


#: Enough functions that their symbols fill pages.
MANY = "".join(f"int function_{at}(int a) {{ return a + {at}; }}\n" for at in range(300))

#: As cuFFT answers, on any machine.
VERSIONS = constant(__file__, "VERSIONS")


class Site:
    """A virtual environment as pip leaves it, with NVIDIA's folders in it, and the slimming program."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "env"
        self.path = self.root / "lib" / "python3.11" / "site-packages"
        self.path.mkdir(parents=True)
        self.program = folder / "slim.pyz"
        self.program.write_bytes(slimmer_bytes())

    def compiled(self, place: str, source: str, *options: str) -> Path:
        target = self.path / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(compiled(self.folder, target.name, source, *options), target)
        return target

    def package(self, name: str, version: str, library: str, *link: Path, source: str = MANY) -> Path:
        """Make a package with one library, linked to others; return the library's path."""
        target = self.compiled(f"{name}/lib/{library}", source, "-Wl,--no-as-needed", *map(str, link))
        info = self.path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{name}/lib/{library},,\n{info.name}/METADATA,,\n")
        return target

    def slim(self, unused: str, *arguments: str, level: str = "unused") -> str:
        argv = [sys.executable, str(self.program), "--root", str(self.root), "--level", level, "--unused", unused]
        return subprocess.run([*argv, *arguments], capture_output=True, text=True, check=True).stdout

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.root / "slim.json").read_text())
        return report

    def slimmed(self, unused: str) -> dict[str, Any]:
        self.slim(unused)
        return self.report()


ASKED = constant(__file__, "ASKED")


@stubs
def test_a_stub_answers_its_version_and_ends_at_anything_else(tmp_path: Path) -> None:
    site = Site(tmp_path)
    fft = site.compiled("nvidia/cu13/lib/libcufft.so.12", VERSIONS)
    argv = [sys.executable, "-c", ASKED, str(fft)]
    before = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert site.slimmed("fft")["stubs"] == ["libcufft.so.12"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert before == ended.stdout + "7\n" == "0 12500\n0 12\n0 13\n0 14\n[True, True]\n7\n"
    assert ended.returncode == -6
    [finding] = match_text(ended.stderr)
    assert (finding.id, finding.fix) == ("slimmed-away", "seatrial run … --slim none")
    assert finding.message == "The script called cufftPlan1d, but libcufft.so.12 was left out of the image"


@gcc
@cases("source", "options")
def test_a_library_whose_version_cannot_be_read_stays(tmp_path: Path, source: str, options: tuple[str, ...]) -> None:
    site = Site(tmp_path)
    fft = site.compiled("nvidia/cu13/lib/libcufft.so.12", source, "-Wl,-z,now", *options)
    report = site.slimmed("fft")
    assert report["stubs"] == [] and "libcufft.so.12" in str(report["kept"])
    assert Elf(fft.read_bytes()).section(".text") is not None


@gcc
@pytest.mark.parametrize("named", [True, False])
def test_nvjitlink_stays_where_a_library_opens_it_by_name(tmp_path: Path, named: bool) -> None:
    site = Site(tmp_path)
    name = "libnvJitLink.so" if named else "libnvrtc.so"
    site.compiled("nvidia/cudnn/lib/libcudnn_engines_tensor_ir.so.9", f'const char *name = "{name}";')
    site.compiled("nvidia/cu13/lib/libcufft.so.12", VERSIONS + 'const char *name = "libnvJitLink.so";')
    site.compiled("nvidia/cu13/lib/libnvJitLink.so.13", "int nvJitLinkCreate(void) { return 0; }")
    report = site.slimmed("fft,sparse,linalg")
    stubs = ["libcufft.so.12"] if named else ["libcufft.so.12", "libnvJitLink.so.13"]
    assert (report["stubs"], bool(report["kept"])) == (stubs, named)


def test_what_xla_calls_stays_where_nvcc_goes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    stays = ("bin/ptxas", "bin/nvlink", "bin/fatbinary", "nvvm/libdevice/libdevice.10.bc", "lib/libnvrtc.so.13")
    goes = ("bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/crt/link.stub", "nvvm/bin/cicc", "lib/libnvvm.so.4")
    write_files(site.path, {f"nvidia/cu13/{name}": "x" * 1000 for name in (*stays, *goes)})
    write_files(site.path, dict.fromkeys(("jaxlib/", "clang/", "libclang-18.1.1.dist-info/"), ""))
    site.slimmed("nvcc,libclang")
    left = [str(path.relative_to(site.path / "nvidia/cu13")) for path in site.path.rglob("cu13/**/*") if path.is_file()]
    assert sorted(left) == sorted(stays)
    assert [path.name for path in site.path.iterdir() if "clang" in path.name] == []


@gcc
def test_the_levels_on_a_site_packages(tmp_path: Path, library: Path) -> None:
    site = Site(tmp_path)
    names = ("torch/bin/protoc", "torch/bin/torch_shm_manager", "torch/include/a.h", "numpy/tests/t.py", "x.a")
    write_files(site.path, {**dict.fromkeys(names, "x" * 1000), "triton/__init__.py": "", "torch/lib/": ""})
    shutil.copy(library, site.path / "torch" / "lib" / "libtorch_cuda.so")
    fft = site.compiled("nvidia/cu13/lib/libcufft.so.12", "int cufftPlan1d(void) { return 0; }")
    assert "MB in all" in site.slim("fft,compile", "--arch", "90", level="arch")
    assert sorted(str(path.relative_to(site.path)) for path in site.path.rglob("*") if path.is_file()) == [
        "nvidia/cu13/lib/libcufft.so.12",
        "torch/bin/torch_shm_manager",  # `import torch` asks for it
        "torch/lib/libtorch_cuda.so",
    ]
    report = site.report()
    assert report["stubs"] == ["libcufft.so.12"]
    assert report["saved_bytes"]["device code for GPUs other than sm_90"] > 8 * PAGE
    stub = fft.read_bytes()
    assert site.slimmed("fft")["stubs"] == ["libcufft.so.12"] and fft.read_bytes() == stub


@pytest.mark.parametrize("kept", ["tensorflow/_api/v2/test", "jaxlib/mlir", "torch/nn"])
def test_build_tools_go_where_xla_does_not_call_them(tmp_path: Path, kept: str) -> None:
    tools = {"nvidia/cu13/bin", "nvidia/cu13/nvvm"}
    write_files(tmp_path, {f"{name}/file": "x" for name in (*tools, "sympy/tests", kept)})
    _, paths = removable(tmp_path, keep_headers=False)
    assert {str(path.relative_to(tmp_path)) for path in paths} == {"sympy/tests"} | (
        tools if "torch" in kept else set()
    )


def test_cuda_that_is_there_twice_is_found(tmp_path: Path) -> None:
    site, base = tmp_path / "site", tmp_path / "usr" / "local" / "cuda" / "lib64"
    wheel = site / "nvidia" / "cu13" / "lib"
    large = "x" * 300_000
    of_wheel = ("libcublas.so.13", "libcublasLt.so.13", "libnvrtc.so.13", "libnvrtc.alt.so.13")  # another library
    write_files(wheel, dict.fromkeys(of_wheel, large))
    stubs = {"stubs/libcublasLt.so": large, "libcublasLt.so.12": "x"}  # to link against; of ours
    write_files(base, {"libcublas.so.12.6.4": large, **stubs})
    (base / "libcublas.so").symlink_to("libcublas.so.12.6.4")
    copies = {str(wheel / "libcublas.so.13"): 300_000, str(base / "libcublas.so.12.6.4"): 300_000}
    assert cuda_copies(site, [str(tmp_path / "usr" / "local"), str(tmp_path / "usr")]) == {"cublas": copies}
    assert cuda_copies(site, []) == {}


@pytest.fixture
def below(tmp_path: Path) -> Site:
    """The framework layer, slimmed."""
    made = Site(tmp_path)
    fft = made.package("nvidia-cufft", "12.0", "libcufft.so.12", source="int cufftPlan1d(void) { return 7; }")
    made.package("torch", "2.13.0", "libtorch_cuda.so", fft)
    made.package("triton", "3.5.0", "libtriton.so")
    (made.root / "framework.txt").write_text("nvidia-cufft==12.0\ntorch==2.13.0\ntriton==3.5.0\n")
    made.slim("fft,compile", "--keep-metadata")
    return made


def slim_above(site: Site) -> str:
    return site.slim("fft,compile", "--above", str(site.root / "framework.txt"))


@gcc
def test_the_layer_below_stays_byte_for_byte_until_its_metadata_goes(below: Site) -> None:
    """The report is of all layers; pip sees what is gone until the last one."""
    files = [path for path in below.path.rglob("*") if path.is_file() and "triton" not in str(path)]
    before, first = {path: (path.read_bytes(), path.stat().st_ino) for path in files}, below.report()
    assert not (below.path / "triton").exists() and (below.path / "triton-3.5.0.dist-info").is_dir()
    above = below.package("extension", "1.0", "libextension.so")
    size = above.stat().st_size
    slim_above(below)
    assert before == {path: (path.read_bytes(), path.stat().st_ino) for path in files}
    assert above.stat().st_size < size  # its debug information
    assert not (below.path / "triton-3.5.0.dist-info").exists()
    report, reason = below.report(), "symbol tables and debug information"
    assert report["stubs"] == first["stubs"] == ["libcufft.so.12"]
    assert report["saved_bytes"][reason] > first["saved_bytes"][reason]


@gcc
def test_stub_that_a_package_above_is_linked_to_is_replaced(below: Site) -> None:
    def wanted() -> list[str]:
        return below.slim("fft,compile", "--wanted").split()

    assert wanted() == []
    stub = below.path / "nvidia-cufft" / "lib" / "libcufft.so.12"
    real = compiled(below.folder, "libcufft.so.12", "int cufftPlan1d(void) { return 7; }")
    below.package("cupy", "14.0", "_cufft.so", real)
    assert wanted() == ["nvidia-cufft==12.0"]
    shutil.copy(real, stub)  # as pip brings it back
    assert wanted() == []
    whole = stub.read_bytes()
    slim_above(below)
    assert stub.read_bytes() == whole and "libcufft.so.12" in below.report()["kept"]


@gcc
def test_without_a_layer_below(tmp_path: Path) -> None:
    made = Site(tmp_path)
    library = made.package("extension", "1.0", "libextension.so")
    size = library.stat().st_size
    slim_above(made)
    assert library.stat().st_size < size


def test_the_program_runs_on_the_oldest_python_there_is(tmp_path: Path) -> None:
    program = tmp_path / "slim.pyz"
    program.write_bytes(slimmer_bytes())
    found = sorted(Path.home().glob(".pyenv/versions/3.8*/bin/python3"))
    old = str(found[0]) if found else shutil.which("python3.8")
    if old is None:
        pytest.skip("no Python 3.8 here")
    ended = subprocess.run([old, str(program), "--help"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
