"""Runs under the target's own interpreter, as a child: can this torch use each GPU? Prints one line of JSON.

A kernel of the driver does not prove it: a wheel may be CPU-only, or hold no code for this GPU's architecture.
"""

import importlib
import json
import time
from typing import Any, Dict, Optional


def check() -> Dict[str, Any]:
    """``{"torch": {version, cuda, arch_list} or None, "kernels": [...], "error": sentence or None}``."""
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
    """A matrix product on the device, compared with the CPU's."""
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


def first_line(error: Exception) -> str:
    """torch explains CUDA errors at length; the first line has which."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


if __name__ == "__main__":
    print(json.dumps(check()))
