"""Begin a recipe's work before and during ``import torch``, which is most of its start. Imports no framework.

A recipe calls ``begin`` above its imports, where it runs as a program: with strangers' code in the same process none of
this would be its to decide.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_reading: dict[Path, Future[Any]] = {}


def begin(read: tuple[Callable[[Path], Any], Path] | None = None) -> None:
    """Begin the GPU's context, and to ``read`` a folder, before torch is there. Call ``imported`` after the imports."""
    gc.disable()  # what is imported stays: to look for garbage in it takes an eighth of the imports' time
    if torch_cuda() is not None:
        # Set as torch sets it: before CUDA 12.2, a context otherwise loads every kernel of every library.
        os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
        threading.Thread(target=open_context, daemon=True).start()
    if read is not None:
        reader, folder = read
        threads = ThreadPoolExecutor(1)
        _reading[folder] = threads.submit(reader, folder)
        threads.shutdown(wait=False)


def imported() -> None:
    """End the imports: collect garbage again, but never search the imported modules."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def read_ahead(reader: Callable[[Path], T], folder: Path) -> T:
    """Return the data that ``begin`` read of this folder, else read it now. Raises what ``reader`` raises."""
    reading = _reading.pop(folder, None)
    if reading is None or reading.exception() is not None:
        return reader(folder)
    result: T = reading.result()
    return result


def torch_cuda() -> int | None:
    """Read from its files the major CUDA version that the installed torch is built for; None: for the CPU."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    found_version = re.search(r"^cuda[^=\n]*= '(\d+)\.", text, re.MULTILINE)
    return int(found_version[1]) if found_version else None


def open_context() -> bool:
    """Make this rank's GPU context by the driver alone, for torch to take; False where torch is to report why not."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    return bool(
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), rank) == 0
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    )


def process_start_s() -> float:
    """Return when this process was started, as Unix time: imports are part of getting ready."""
    stat = Path("/proc/self/stat").read_text(errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
