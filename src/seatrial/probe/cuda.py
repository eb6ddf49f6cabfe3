"""Read which devices CUDA sees, and run a kernel on each, through ctypes on libcuda.so.1 without a toolkit.

In a container, find that library and recognise files that an image has under its name.

``main()`` is for a child process that prints one JSON object and exits, so that no context outlives the check.
"""

import ctypes
import json
import os
import sys
import time
import uuid
from contextlib import suppress
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

LIBRARY = "libcuda.so.1"
#: Threads of the one block that is launched; each writes one 32-bit word.
_THREADS = 256

#: out[i] = i * i + 7. PTX is compiled for the GPU by the driver, so one text serves every architecture since Maxwell.
#: Source of the syntax: https://docs.nvidia.com/cuda/parallel-thread-execution/. Ran on an H200 (12–118 ms to load).
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64

.visible .entry squares(.param .u64 out)
{
    .reg .u32 %i, %value;
    .reg .u64 %base, %offset;

    ld.param.u64 %base, [out];
    cvta.to.global.u64 %base, %base;
    mov.u32 %i, %tid.x;
    mad.lo.u32 %value, %i, %i, 7;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %base, %base, %offset;
    st.global.u32 [%base], %value;
    ret;
}
\0"""

_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75  # cuda.h
_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76  # cuda.h
#: Folders of the libraries in a mounted folder of the driver.
_BELOW = ("", "lib", "lib64")


class CudaError(Exception):
    """A driver call failed; the text names the call, CUDA's own name of the error, and its number (``status``)."""

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


class CudaDriver:
    """libcuda.so.1, not yet initialised. Raises CudaError when it cannot be loaded."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise CudaError("libcuda.so.1 cannot be loaded: %s" % error) from None

    def call(self, function: str, *arguments: Any) -> None:
        """Call by name. Raises CudaError unless it returns CUDA_SUCCESS."""
        if (status := getattr(self._library, function)(*arguments)) == 0:
            return
        name = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(name))
        raise CudaError("%s: %s (%d)" % (function, (name.value or b"unknown error").decode(), status), status)

    def number(self, function: str, *arguments: Any) -> int:
        """Call a function whose first parameter is an int that it fills in."""
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value


def check(library: str = LIBRARY) -> Dict[str, Any]:
    """List every device and run a kernel on it. ``library``: the path or the name of libcuda.so.1.

    Returns:
        ``visible`` as in the event ``gpu.check``, ``kernels`` as in ``gpu.kernel``, ``cuda_driver`` ("13.0"),
        ``libcuda`` (name of the library), ``cu_init`` (its result), ``error`` (a sentence); each of the last four
        None where there is none. Never raises for a CUDA that is not there.
    """
    result = nothing_seen()
    try:
        driver = CudaDriver(library)
        result["libcuda"] = LIBRARY
        driver.call("cuInit", 0)
        result["cu_init"] = 0
        version = driver.number("cuDriverGetVersion")
        result["cuda_driver"] = "%d.%d" % (version // 1000, version % 1000 // 10)
        for index in range(driver.number("cuDeviceGetCount")):
            device = driver.number("cuDeviceGet", index)
            result["visible"].append(_describe(driver, device, index))
            result["kernels"].append(_try_kernel(driver, device, result["visible"][-1]["uuid"]))
    except CudaError as error:
        result["error"] = str(error)
        if result["cu_init"] is None:
            result["cu_init"] = error.status
    return result


def nothing_seen() -> Dict[str, Any]:
    """Return check()'s result before it has looked, and when it could not."""
    return {"visible": [], "kernels": [], "cuda_driver": None, "libcuda": None, "cu_init": None, "error": None}


def _describe(driver: CudaDriver, device: int, index: int) -> Dict[str, Any]:
    raw, name, memory = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    driver.call("cuDeviceGetName", name, len(name), device)
    driver.call("cuDeviceGetUuid_v2", ctypes.byref(raw), device)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    major = driver.number("cuDeviceGetAttribute", _CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    minor = driver.number("cuDeviceGetAttribute", _CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
    text = name.value.decode("utf-8", "replace")
    # cuDeviceGetUuid_v2 gives the UUID of a slice; only the name shows that it is one.
    prefix = "MIG" if " MIG " in text else "GPU"
    return {
        "uuid": "%s-%s" % (prefix, uuid.UUID(bytes=bytes(raw))),
        "name": text,
        "index": index,
        "compute_capability": "%d.%d" % (major, minor),
        "memory_bytes": memory.value,
    }


def _try_kernel(driver: CudaDriver, device: int, gpu: str) -> Dict[str, Any]:
    start_s = time.monotonic()
    error: Optional[str] = None
    try:
        context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            driver.call("cuCtxSetCurrent", context)
            _run_kernel(driver)
        finally:
            driver.call("cuDevicePrimaryCtxRelease_v2", device)
    except CudaError as failure:
        error = str(failure)
    milliseconds = round((time.monotonic() - start_s) * 1000, 1)
    return {"uuid": gpu, "kind": "driver", "ok": error is None, "ms": milliseconds, "error": error, "torch": None}


def _run_kernel(driver: CudaDriver) -> None:
    """Load, launch, read back and compare, in the current context. Raises CudaError."""
    module, function, pointer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    words = (ctypes.c_uint32 * _THREADS)()
    driver.call("cuModuleLoadData", ctypes.byref(module), _PTX)
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, b"squares")
    driver.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(ctypes.sizeof(words)))
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
    driver.call("cuLaunchKernel", function, 1, 1, 1, _THREADS, 1, 1, 0, None, parameters, None)
    driver.call("cuCtxSynchronize")
    driver.call("cuMemcpyDtoH_v2", words, pointer, ctypes.c_size_t(ctypes.sizeof(words)))
    driver.call("cuMemFree_v2", pointer)
    wrong: List[int] = [i for i in range(_THREADS) if words[i] != i * i + 7]
    if wrong:
        raise CudaError("the kernel ran but %d of %d results are wrong" % (len(wrong), _THREADS))


def main(library: str = LIBRARY) -> None:
    """Print check() as one line of JSON."""
    sys.stdout.write(json.dumps(check(library)) + "\n")


def find(name: str, filled: Sequence[str], env: Mapping[str, str]) -> Tuple[str, bool]:
    """Return (path of ``libcuda.so.1`` or another, whether an image could have put it there).

    An engine binds the driver's files read-only, from another file system than the image's. Without such a file, it is
    the first that the loader would find. The name itself: there is none.

    ``filled``: targets of mounts that hold other people's files. ``env``: of the process that is to load it.
    """
    stem = name.partition(".so")[0] + ".so"
    for point in _engines_mounts(filled):
        if os.path.basename(point).startswith(stem) and _is_library(point):
            return point, False
        for below in _BELOW:
            path = os.path.realpath(os.path.join(point, below, name))
            if path.startswith(point + "/") and _is_library(path):
                return path, False
    from seatrial.probe.driver_files import FOLDERS, WSL_FOLDER

    for folder in [*env.get("LD_LIBRARY_PATH", "").split(":"), *FOLDERS, WSL_FOLDER]:
        if folder.startswith("/") and _is_library(os.path.join(folder, name)):
            return os.path.join(folder, name), True
    return name, False


def _engines_mounts(filled: Sequence[str]) -> Iterator[str]:
    """Yield the mount points that are read-only, from another file system than /, and not among ``filled``."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = [line.split(" ", 6) for line in file]  # Source: proc_pid_mountinfo(5)
    ours = [device for _, _, device, _, point, _, _ in mounts if point == "/"]
    for _, _, device, _, point, options, _ in mounts:
        others = any(point == target or point.startswith(target + "/") for target in filled)
        if device not in ours and "ro" in options.split(",") and not others:
            yield point


def _is_library(path: str) -> bool:
    """Return whether it is an ELF file of 64 bits: a driver for programs of 32 may be next to it."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(5) == b"\x7fELF\x02"
    return False
