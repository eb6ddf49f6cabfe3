"""Runs under the target's own interpreter, as a child: can this torch use each GPU? Prints one line of JSON.

A kernel of the driver does not prove it: a wheel may be CPU-only, or hold no code for this GPU's architecture. With the
argument ``types`` each number type is tried on each GPU: some failures show in one type alone.
"""

import importlib
import json
import sys
import time
from typing import Any, Dict, Optional

#: Types that training uses, and the compute capability from which hardware has them.
#: Source: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions
TYPES = (("float32", (3, 0)), ("float64", (3, 0)), ("float16", (5, 3)), ("bfloat16", (8, 0)))


def check() -> Dict[str, Any]:
    """Return ``{"torch": {version, cuda, arch_list} or None, "kernels": [...], "error": sentence or None}``."""
    result: Dict[str, Any] = {"torch": None, "kernels": [], "error": None}
    try:
        torch = importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001  # a broken wheel raises OSError, RuntimeError and worse
        result["error"] = "torch cannot be imported: %s: %s" % (type(error).__name__, error)
        return result
    result["torch"] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "arch_list": torch.cuda.get_arch_list() if torch.version.cuda else [],
    }
    if torch.version.cuda is None:
        result["error"] = "torch %s is a CPU-only build" % torch.__version__
        return result
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001
        result["error"] = "torch cannot start CUDA: %s" % first_line(error)
        return result
    for index in range(torch.cuda.device_count()):
        result["kernels"].append(try_matmul(torch, index))
    return result


def try_matmul(torch: Any, index: int) -> Dict[str, Any]:
    """Run a matrix product on the device and compare it with the CPU's."""
    start_s = time.monotonic()
    error: Optional[str] = None
    try:
        # Small whole numbers: exact in float32, so that TF32 or another order of summation changes nothing.
        a_MK = torch.arange(64 * 32).reshape(64, 32).remainder(7).float()
        b_KN = torch.arange(32 * 64).reshape(32, 64).remainder(5).float()
        device = torch.device("cuda", index)
        c_MN = (a_MK.to(device) @ b_KN.to(device)).cpu()
        if not torch.equal(c_MN, a_MK @ b_KN):
            error = "a matrix product on cuda:%d differs from the CPU's" % index
    except Exception as failure:  # noqa: BLE001
        error = first_line(failure)
    milliseconds = round((time.monotonic() - start_s) * 1000, 1)
    return {"index": index, "ok": error is None, "ms": milliseconds, "error": error}


def check_types() -> Dict[str, Any]:
    """Return the same with a kernel of each type, and the versions ``nccl`` and ``cudnn``."""
    start_s = time.monotonic()
    result: Dict[str, Any] = {"torch": None, "kernels": [], "error": None, "nccl": None, "cudnn": None}
    try:
        torch = importlib.import_module("torch")
        flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
        result["torch"] = {
            "version": torch.__version__,
            "cuda": torch.version.cuda,
            "arch_list": flags.split() if flags else [],  # get_arch_list() is empty without a GPU
        }
        if torch.version.cuda is None:
            result["error"] = "torch %s is a CPU-only build" % torch.__version__
            return result
        torch.cuda.init()
        result["cudnn"] = torch.backends.cudnn.version()
        result["nccl"] = list(torch.cuda.nccl.version()) if torch.distributed.is_nccl_available() else None
        for index in range(torch.cuda.device_count()):
            capability = torch.cuda.get_device_capability(index)
            for name, since in TYPES:
                if tuple(capability) >= since:
                    result["kernels"].append(try_type(torch, index, name))
    except Exception as error:  # noqa: BLE001  # a broken wheel raises OSError, RuntimeError and worse
        result["error"] = "%s: %s" % (type(error).__name__, (str(error).strip() or "no message").splitlines()[0])
    result["seconds"] = round(time.monotonic() - start_s, 2)
    return result


def try_type(torch: Any, index: int, name: str) -> Dict[str, Any]:
    """Run a matrix product in one type on one device and compare it with the CPU's in float32."""
    error: Optional[str] = None
    try:
        # Whole numbers whose products stay below 256: exact in every type, bfloat16 included.
        a_MK = torch.arange(16 * 16).reshape(16, 16).remainder(3).float()
        b_KN = torch.arange(16 * 16).reshape(16, 16).remainder(4).float()
        device, dtype = torch.device("cuda", index), getattr(torch, name)
        c_MN = (a_MK.to(device, dtype) @ b_KN.to(device, dtype)).float().cpu()
        if not torch.equal(c_MN, a_MK @ b_KN):
            error = "a matrix product in %s on cuda:%d differs from the CPU's" % (name, index)
    except Exception as failure:  # noqa: BLE001
        error = first_line(failure)
    return {"index": index, "type": name, "ok": error is None, "error": error}


def first_line(error: Exception) -> str:
    """Return the first line, which names the CUDA error that torch explains at length."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    print(json.dumps(check_types() if sys.argv[1:] == ["types"] else check()))
