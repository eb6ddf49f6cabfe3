"""--gpu-memory: each framework's allocator gets the limit, in every process of the target.

What CUDA itself takes, its context and its libraries' workspaces (0.5 to 1 GB), is on top.
"""

import atexit
import ctypes
import os
from typing import Any, Callable, Dict, List, Optional

from . import report

LIMIT_BYTES = int(os.environ.get("SEATRIAL_GPU_MEMORY_BYTES") or 0)


def limit_torch(torch: Any) -> None:
    """Queue the limit for when the script starts CUDA: setting it now would start CUDA, and break later forks."""
    torch.cuda._lazy_call(lambda: set_torch_fractions(torch))


def set_torch_fractions(torch: Any) -> None:
    """The allocator takes a fraction of each device's memory. A rank touches its own device only: setting it makes a
    context there."""
    rank = os.environ.get("LOCAL_RANK")
    for index in range(torch.cuda.device_count()) if rank is None else [int(rank)]:
        total_bytes = torch.cuda.get_device_properties(index).total_memory
        with torch.cuda.device(index):  # setting the fraction changes the current device
            torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total_bytes), index)
    held(
        "torch",
        lambda: [
            torch.cuda.memory_stats(index).get("reserved_bytes.all.peak", 0)
            for index in range(torch.cuda.device_count())
        ],
    )


def largest_gpu_bytes() -> Optional[int]:
    """Memory of the largest GPU that this process sees; None without one.

    A framework that starts its GPUs takes one fraction for all: with the largest GPU's the limit is kept on each. The
    driver tells without a context.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return None
    return max([_gpu_bytes(cuda, index) for index in range(count.value)] or [0]) or None


def _gpu_bytes(cuda: Any, index: int) -> int:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    failed = cuda.cuDeviceGet(ctypes.byref(device), index) or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return 0 if failed else total.value


_told: Dict[str, bool] = {}


def held(framework: str, peaks_bytes: Callable[[], List[int]]) -> None:
    """Tell that this process is held to the limit, and at its end how much of each GPU it had at most.

    Args:
        peaks_bytes: one number a GPU, as the framework's allocator counted.
    """
    pid = os.getpid()
    if framework in _told:
        return
    _told[framework] = True
    fact: Dict[str, Any] = {"framework": framework, "pid": pid, "limit_bytes": LIMIT_BYTES}
    report.write("gpu_memory", fact)

    def tell_peaks() -> None:
        if os.getpid() == pid:
            try:
                report.write("gpu_memory", dict(fact, peak_bytes=[int(peak) for peak in peaks_bytes()]))
            except Exception:  # noqa: BLE001  the script is at its end: nothing of ours may fail it
                pass

    atexit.register(tell_peaks)


def not_held(framework: str, error: BaseException) -> None:
    """Tell that the framework could not be given the limit."""
    reason = "%s: %s" % (type(error).__name__, error)
    report.write("gpu_memory", {"framework": framework, "pid": os.getpid(), "failed": reason[:300]})
