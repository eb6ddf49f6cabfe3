"""CUDA text to machine code by NVRTC: without torch and without a GPU."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

#: Where NVIDIA's wheels put NVRTC beside other packages, for CUDA 13 and for CUDA 12.
WHEEL_FOLDERS = ("nvidia/cu{major}/lib", "nvidia/cuda_nvrtc/lib")


class Compiled(NamedTuple):
    """Machine code of one source, and what the compiler said about it."""

    code: bytes
    log: str


@cache
def load(major: int) -> ctypes.CDLL:
    """NVRTC of this CUDA version: what torch has loaded or the system has, else NVIDIA's wheel. Raises OSError."""
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


def machine_code(nvrtc: ctypes.CDLL, source: str, architecture: str, *more: str) -> Compiled:
    """A source, compiled for a GPU such as ``sm_90``. Raises RuntimeError with the compiler's text.

    torch's own torch.cuda._compile_kernel compiles a source once for each kernel, and imports setuptools (half a
    second) to look for headers.

    Args:
        more: options beyond the architecture.
    """
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    told = [option.encode() for option in (f"--gpu-architecture={architecture}", *more)]
    options = (ctypes.c_char_p * len(told))(*told)
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"seatrial.cu", 0, None, None))
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(told), options)
        check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetProgramLog(program, text))
        log = text.value.decode(errors="replace")
        if failed:
            raise RuntimeError(f"NVRTC: {log}")
        check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        check(nvrtc.nvrtcGetCUBIN(program, binary))
        return Compiled(binary.raw, log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def check(code: int) -> None:
    """Raises RuntimeError where NVRTC or the driver reports an error."""
    if code:
        raise RuntimeError(f"NVRTC or the CUDA driver answers with error {code}")
