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


def check(types: bool = False) -> Dict[str, Any]:
    """Return ``{"torch": {version, cuda, arch_list} or None, "kernels": [...], "error": sentence or None}``.

    ``types``: run a kernel of each of TYPES that the GPU has, in place of one.
    """
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
    if types and hasattr(torch._C, "_cuda_getArchFlags"):  # get_arch_list() is empty without a GPU
        result["torch"]["arch_list"] = (torch._C._cuda_getArchFlags() or "").split()
    if torch.version.cuda is None:
        result["error"] = "torch %s is a CPU-only build" % torch.__version__
        return result
    try:
        torch.cuda.init()
        for index in range(torch.cuda.device_count()):
            able = tuple(torch.cuda.get_device_capability(index)) if types else ()
            names = [name for name, since in TYPES if able >= since] or [""]
            result["kernels"] += [try_matmul(torch, index, name) for name in names]
    except Exception as error:  # noqa: BLE001
        result["error"] = "torch cannot start CUDA: %s" % first_line(error)
    return result


def try_matmul(torch: Any, index: int, name: str) -> Dict[str, Any]:
    """Run a matrix product on one device, in the type of this name, and compare it with the CPU's in float32."""
    start_s = time.monotonic()
    error: Optional[str] = None
    try:
        # Whole numbers whose products stay below 256: exact in every type, with TF32 and in any order of summation.
        a_MK = torch.arange(64 * 32).reshape(64, 32).remainder(3).float()
        b_KN = torch.arange(32 * 64).reshape(32, 64).remainder(4).float()
        there = (torch.device("cuda", index), getattr(torch, name)) if name else (torch.device("cuda", index),)
        c_MN = (a_MK.to(*there) @ b_KN.to(*there)).float().cpu()
        if not torch.equal(c_MN, a_MK @ b_KN):
            error = "a matrix product %son cuda:%d differs from the CPU's" % ("in %s " % name if name else "", index)
    except Exception as failure:  # noqa: BLE001
        error = first_line(failure)
    milliseconds = round((time.monotonic() - start_s) * 1000, 1)
    return {"index": index, "type": name, "ok": error is None, "ms": milliseconds, "error": error}


def first_line(error: Exception) -> str:
    """Return the first line, which names the CUDA error that torch explains at length."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    print(json.dumps(check(types=sys.argv[1:] == ["types"])))
