"""CUDA kernels of our own: compiled by NVRTC when first used, kept for later processes, launched on the current stream.

NVRTC comes with torch; no compiler or header need be installed, and a source takes tenths of a second, where
torch.compile takes 6 to 23 s for the networks here. Kernels are called from autograd functions that run eagerly, so
that a CUDA graph captures them like torch's own, and never from torch.compile: torch 2.11 drops the gradients of an
autograd function that returns ``y.contiguous()`` (https://github.com/pytorch/pytorch/issues/180642).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

THREADS = 256
#: A kernel's head in a source, with or without bounds for its registers.
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(')
#: Shared memory that a kernel has without asking for more (CUDA programming guide).
PLAIN_SHARED_BYTES = 48 * 1024
#: Folders of NVRTC in NVIDIA's wheels, next to other packages, for CUDA 13 and for CUDA 12.
WHEEL_FOLDERS = ("nvidia/cu{major}/lib", "nvidia/cuda_nvrtc/lib")
#: A cached file begins with the digest of the rest; no kernel of ours is larger than MAX_BYTES.
DIGEST_BYTES, MAX_BYTES = hashlib.sha256().digest_size, 16 * 1024 * 1024

Kernel = Callable[..., None]


class Compiled(NamedTuple):
    """Machine code of one source, and the compiler's log."""

    code: bytes
    log: str


def compiled(source: str, device: int) -> dict[str, Kernel]:
    """Return the kernels of a source by name. Raises RuntimeError, OSError or AttributeError without NVRTC."""
    return build(source, device).result()


@cache
def build(source: str, device: int) -> Future[dict[str, Kernel]]:
    """Begin to compile a source: several at a time take no longer than one."""
    return _compilers().submit(_compile, source, device)


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="nvrtc")


def _compile(source: str, device: int) -> dict[str, Kernel]:
    from torch.cuda._utils import _cuda_load_module  # torch 2.8 and later

    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    file = cache_name(source, architecture, _driver_version())
    binary = read_cached(file)
    if binary is None:
        if torch.version.cuda is None:
            raise RuntimeError("this torch is not built for CUDA")
        binary = compile_text(load_nvrtc(int(torch.version.cuda.split(".")[0])), source, architecture).code
        keep_cached(file, binary)
    _enter_context(device)
    return cast(dict[str, Kernel], _cuda_load_module(binary, KERNEL.findall(source)))


@cache
def load_nvrtc(major: int) -> ctypes.CDLL:
    """Load NVRTC of this CUDA version, of torch or the system, else of NVIDIA's wheel. Raises OSError."""
    name = f"libnvrtc.so.{major}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        folders = (Path(place, each.format(major=major)) for place in sys.path for each in WHEEL_FOLDERS)
        folder = next((each for each in folders if (each / name).is_file()), None)
        if folder is None:
            raise
    for builtins in folder.glob(f"libnvrtc-builtins.so.{major}.*"):
        ctypes.CDLL(str(builtins))  # the wheel's NVRTC looks for them by name alone
    return ctypes.CDLL(str(folder / name))


def compile_text(nvrtc: ctypes.CDLL, source: str, architecture: str, *more: str) -> Compiled:
    """Compile a source for a GPU such as ``sm_90``, with more options. Raises RuntimeError with the compiler's text.

    torch's own torch.cuda._compile_kernel compiles a source once for each kernel, and imports setuptools (half a
    second) to look for headers.
    """
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *more)]
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"seatrial.cu", 0, None, None))
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetProgramLog(program, text))
        log = text.value.decode(errors="replace")
        if failed:
            raise RuntimeError(f"NVRTC: {log}")
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, binary))
        return Compiled(binary.raw, log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"NVRTC or the CUDA driver answers with error {code}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _driver_version() -> int:
    version = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(version)))
    return version.value


@cache
def _context(device: int) -> ctypes.c_void_p:
    context = ctypes.c_void_p()
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    return context


def _enter_context(device: int) -> None:
    """Make the device's context this thread's. A new thread (compiler's, backward pass's) has none, and
    torch.cuda.device sets none where it believes the device to be the current one already."""
    _check(_driver().cuCtxSetCurrent(_context(device)))


@cache
def unavailable() -> str | None:
    """Return why no kernel can be compiled here, or None."""
    try:
        device = torch.cuda.current_device()
        compiled('extern "C" __global__ void nothing(int zero) {}\n', device)
    except (RuntimeError, OSError, AttributeError, ImportError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"
    return None


def usable(device: torch.device) -> bool:
    """Return True if kernels of our own can run here and now: on a GPU, with NVRTC, and not inside of torch.compile."""
    return device.type == "cuda" and not torch.compiler.is_compiling() and unavailable() is None


def launch(
    source: str, name: str, blocks: int | tuple[int, ...], arguments: Sequence[Any], *, shared_bytes: int = 0
) -> None:
    """Queue a kernel of THREADS threads a block. Tensors go as pointers (None: null), ints as int, floats as double."""
    across, down, deep = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
    device = next(argument.device for argument in arguments if isinstance(argument, Tensor))
    given = [torch.empty(0, device=device) if argument is None else argument for argument in arguments]  # at address 0
    _enter_context(device.index)
    kernel = compiled(source, device.index)[name]
    if shared_bytes >= PLAIN_SHARED_BYTES:
        _allow(kernel, shared_bytes)
    kernel(grid=(across, down, deep), block=(THREADS, 1, 1), args=given, shared_mem=shared_bytes)


def _allow(kernel: Any, shared_bytes: int) -> None:
    """Allow a kernel so many bytes of shared memory; torch 2.9 and later have a method for it."""
    if shared_bytes <= getattr(kernel, "allowed_shared_bytes", 0):
        return
    if hasattr(kernel, "set_shared_memory_config"):
        kernel.set_shared_memory_config(shared_bytes)
    else:  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(_driver().cuFuncSetAttribute(kernel.func, 8, shared_bytes))
    kernel.allowed_shared_bytes = shared_bytes


def max_shared_bytes(device: torch.device) -> int:
    """Return the shared memory, in bytes, that a kernel can request."""
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", PLAIN_SHARED_BYTES))


# The cache of compiled kernels: a file for each source, driver, torch and kind of GPU. Its folder outlives a container
# of seatrial's. Files that cannot be read or written only cost the time to compile again.


def cache_folder() -> Path | None:
    """Return ``$XDG_CACHE_HOME/seatrial/kernels``, else under ``~/.cache``; None if it cannot be trusted or made.

    Anyone who can write there could run code on the GPU: a folder that another user owns or may write is not used.
    """
    home = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '')}/.cache"
    if not home.startswith("/"):
        return None
    place = Path(home) / "seatrial" / "kernels"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return place if ours else None


def cache_name(source: str, architecture: str, driver: int) -> str:
    """Return the file of a source: every byte of it and the versions of compiler and driver are in the name."""
    key = "\0".join((source, architecture, str(driver), torch.__version__, str(torch.version.cuda)))
    return f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"


def read_cached(file: str) -> bytes | None:
    """Return a binary that was kept whole, or None."""
    place = cache_folder()
    if place is None:
        return None
    try:
        with (place / file).open("rb") as kept:
            content = kept.read(MAX_BYTES)
    except OSError:
        return None
    digest, binary = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return binary if binary and hashlib.sha256(binary).digest() == digest else None


def keep_cached(file: str, binary: bytes) -> None:
    """Write a binary aside and rename it, so that nobody reads half of one."""
    place = cache_folder()
    if place is None:
        return
    aside = ""
    try:
        descriptor, aside = tempfile.mkstemp(dir=place, suffix=".part")
        with os.fdopen(descriptor, "wb") as new:
            new.write(hashlib.sha256(binary).digest() + binary)
        Path(aside).replace(place / file)
    except OSError:
        if aside:
            Path(aside).unlink(missing_ok=True)
