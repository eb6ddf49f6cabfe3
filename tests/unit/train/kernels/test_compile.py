"""Every kernel compiles for the supported GPUs, without one: errors, warnings, spilled registers, shared memory.

``tests/cuda_on_cpu.py`` runs the same texts on the CPU, but for what only NVRTC reads: PTX, launch bounds, sizes.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

pytest.importorskip("torch")

import kernel_texts
from seatrial.train.kernels import runtime
from seatrial.train.kernels.runtime import PLAIN_SHARED_BYTES, THREADS

pytestmark = pytest.mark.torch
slow = pytest.mark.slow

#: The most shared memory of a block (CUDA programming guide, compute capability 8.0; 9.0 and 10.0 have 227 KB).
SHARED_BYTES = 163 * 1024
#: Registers of a multiprocessor, of all three: a block's threads must fit.
REGISTERS = 65536
#: Warnings of code that one text's numbers make needless: never referenced, never used, comparing with 0, unreachable.
HARMLESS = {"177", "550", "186", "128"}
#: Bytes that these spill at most (NVRTC 13.0.88, the worst of the three); the others keep all in registers.
SPILLED: dict[str, int] = {}
USED = re.compile(
    r"properties for (\w+)\nptxas[ .]+\d+ bytes stack frame, (\d+) bytes spill stores, \d+ bytes spill loads\n"
    r"ptxas info +: Used (\d+) registers(.*)\n"
)


@pytest.fixture(scope="module")
def nvrtc():
    try:
        return runtime.load_nvrtc(13)
    except OSError:
        pytest.skip("NVRTC of CUDA 13 is not installed: pip install nvidia-cuda-nvrtc")


@cache
def compiled(nvrtc, text, architecture):
    return runtime.compile_text(nvrtc, text, architecture, "--ptxas-options=-v")


def used(log):
    """Kernel → bytes spilled, registers, bytes of static shared memory."""
    found = {}
    for name, spilled, registers, rest in USED.findall(log):
        shared = re.search(r"(\d+) bytes smem", rest)
        found[name] = int(spilled), int(registers), int(shared[1]) if shared else 0
    return found


@pytest.mark.parametrize("group", kernel_texts.GROUPS, ids=lambda group: group.__name__)
@pytest.mark.parametrize(
    "architecture",
    ["sm_90", pytest.param("sm_80", marks=pytest.mark.slow), pytest.param("sm_100", marks=pytest.mark.slow)],
)
def test_every_text_compiles(nvrtc, architecture, group):
    texts = kernel_texts.texts(group)
    assert texts
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda text: compiled(nvrtc, text, architecture), texts.values())
        for (name, text), (code, log) in zip(texts.items(), results, strict=True):
            assert code.startswith(b"\x7fELF"), name
            assert set(re.findall(r"warning #(\d+)-D", log)) <= HARMLESS, f"{name}: {log}"
            assert "ptxas warning" not in log, f"{name}: {log}"
            kernels = used(log)
            assert sorted(kernels) == sorted(match[1] for match in kernel_texts.KERNEL.finditer(text)), name
            for kernel, (spilled, registers, shared) in kernels.items():
                assert spilled <= SPILLED.get(kernel, 0), f"{name}: {kernel} spills {spilled} bytes"
                assert registers * THREADS <= REGISTERS, f"{name}: {kernel} takes {registers} registers"
                assert shared <= PLAIN_SHARED_BYTES, f"{name}: {kernel} takes {shared} bytes"


def test_shared_memory_that_is_requested_fits(nvrtc):
    """Beside what a kernel has of its own; ``launch`` asks for more than 48 KB only from 48 KB on."""
    requested = list(kernel_texts.dynamic())
    assert {kernel for kernel, *_ in requested} == kernels_that_ask()
    for kernel, text, dynamic in requested:
        together = used(compiled(nvrtc, text, "sm_90").log)[kernel][2] + dynamic
        assert together <= SHARED_BYTES, kernel
        assert together <= PLAIN_SHARED_BYTES or dynamic >= PLAIN_SHARED_BYTES, kernel


def kernels_that_ask():
    """Names of kernels whose body speaks of memory that the launch gives."""
    found = set()
    for path in sorted(kernel_texts.FOLDER.glob("*.cu")):
        text = path.read_text()
        for match in kernel_texts.KERNEL.finditer(text):
            if "extern __shared__" in text[match.end() : text.find("\n}\n", match.end())]:
                found.add(match[1])
    return found


def test_no_kernel_is_left_out():
    """Each kernel that stands in a file is in one of the texts above."""
    texts = "\n".join(text for group in kernel_texts.GROUPS for text in kernel_texts.texts(group).values())
    written = list(kernel_texts.written())
    assert len(written) > 40
    for file, kernel, head in written:
        there = f"void {kernel}(" in texts if "POINTERS" in head else head in texts
        assert there, f"{kernel} of {file} is compiled by no test: add its text to tests/kernel_texts.py"


def test_an_error_reports_what_and_where(nvrtc):
    with pytest.raises(RuntimeError, match=r'seatrial.cu\(1\): error: identifier "nope" is undefined'):
        runtime.compile_text(nvrtc, 'extern "C" __global__ void f() { nope; }', "sm_90")


def test_without_the_library_the_error_names_it():
    with pytest.raises(OSError, match=r"libnvrtc\.so\.1"):
        runtime.load_nvrtc(1)


def test_compiled_kernels_are_kept_whole_and_in_a_folder_of_ones_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "seatrial" / "kernels"
    given = [("source", "sm_90", 13000), ("other", "sm_90", 13000), ("source", "sm_80", 13000), ("source", "sm_90", 1)]
    files = [runtime.cache_name(*each) for each in given]
    assert len({*files}) == 4 and runtime.read_cached(files[0]) is None
    runtime.keep_cached(files[0], b"binary")
    assert runtime.read_cached(files[0]) == b"binary" and [path.name for path in folder.iterdir()] == files[:1]
    for broken in (b"", b"short", bytes(40), b"x" * 100):
        (folder / files[0]).write_bytes(broken)
        assert runtime.read_cached(files[0]) is None
    runtime.keep_cached(files[0], b"binary")
    folder.chmod(0o777)
    assert runtime.cache_folder() is None and runtime.read_cached(files[0]) is None
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    runtime.keep_cached(files[0], b"binary")
    assert runtime.read_cached(files[0]) is None
