"""Runs under the target's own interpreter, as a child: can this JAX use each GPU? Prints JSON, the last line counts.

A function is jitted: that XLA compiles for the GPU needs ptxas, and code for it; to list devices needs neither.
"""

import importlib
import json
import os
import re
import time
from typing import Any, Dict, List, Optional

#: The target's variables that take or limit memory, or wait for other machines.
OF_THE_TARGET = (
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "JAX_COORDINATOR_ADDRESS",
    "TF_CPP_MIN_LOG_LEVEL",
)


def check() -> Dict[str, Any]:
    """Return ``{"framework": {name, version, cuda} or None, "kernels": [...], "error": sentence or None}``."""
    result: Dict[str, Any] = {"framework": None, "kernels": [], "error": None, "lacks": []}
    for name in OF_THE_TARGET:
        os.environ.pop(name, None)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the target wants the memory
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"  # nothing is kept back
    try:
        jax = importlib.import_module("jax")
    except Exception as error:  # noqa: BLE001  # a broken wheel raises OSError, RuntimeError and worse
        result["error"] = "JAX cannot be imported: %s: %s" % (type(error).__name__, first_lines(error))
        return result
    result["framework"] = {"name": "jax", "version": jax.__version__, "cuda": cuda()}
    platforms = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME") or ""
    if platforms and not {"cuda", "gpu"} & set(platforms.lower().split(",")):
        result["error"] = "JAX_PLATFORMS=%s keeps JAX away from the GPU" % platforms
        return result
    try:
        devices = jax.devices("gpu")
    except Exception as error:  # noqa: BLE001
        result["error"] = first_lines(error)
        return result
    result["kernels"] = [try_jit(jax, index, device) for index, device in enumerate(devices)]
    return result


def cuda() -> Optional[str]:
    """Return the CUDA installed for JAX, ``13`` of jax-cuda13-plugin or ``12`` of a jaxlib with its own; or None."""
    for found in importlib.import_module("importlib.metadata").distributions():
        name = "%s==%s" % (found.metadata["Name"], found.version)
        match = re.match(r"jax-cuda(\d+)-plugin==|jaxlib==.*\+cuda(\d+)", name)
        if match:
            return match.group(1) or match.group(2)
    return None


def try_jit(jax: Any, index: int, device: Any) -> Dict[str, Any]:
    """Run a matrix product and what follows one, compiled for the device, and compare it with NumPy's."""
    numpy = importlib.import_module("numpy")
    start_s = time.monotonic()
    error: Optional[str] = None
    try:
        # Small whole numbers: exact in float32, so that TF32 or another order of summation changes nothing.
        a_MK = (numpy.arange(64 * 32).reshape(64, 32) % 7).astype("float32")
        b_KN = (numpy.arange(32 * 64).reshape(32, 64) % 5).astype("float32")
        compiled = jax.jit(lambda a, b: jax.numpy.maximum(a @ b * 2.0 + 1.0, 0.0))
        c_MN = compiled(jax.device_put(a_MK, device), jax.device_put(b_KN, device))
        if not numpy.array_equal(numpy.asarray(c_MN), a_MK @ b_KN * 2.0 + 1.0):
            error = "a jitted function on %s differs from the CPU's" % device
    except Exception as failure:  # noqa: BLE001
        error = first_lines(failure)
    milliseconds = round((time.monotonic() - start_s) * 1000, 1)
    return {"index": index, "ok": error is None, "ms": milliseconds, "error": error}


def lacking(jax: Any, device: Any) -> List[str]:
    """Return the failures on the device of parts that only some scripts need: a convolution (cuDNN)."""
    try:
        images_NCHW = jax.device_put(jax.numpy.ones((1, 4, 8, 8)), device)
        filters_OIHW = jax.device_put(jax.numpy.ones((4, 4, 3, 3)), device)
        jax.jit(lambda a, b: jax.lax.conv(a, b, (1, 1), "SAME"))(images_NCHW, filters_OIHW).block_until_ready()
    except Exception as failure:  # noqa: BLE001
        return ["a convolution: %s" % first_lines(failure)]
    return []


def first_lines(error: Exception) -> str:
    """Return the first two lines: of several missing parts of CUDA the first line only has that some are missing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


if __name__ == "__main__":
    result = check()
    print(json.dumps(result), flush=True)
    if any(kernel["ok"] for kernel in result["kernels"]):
        jax = importlib.import_module("jax")
        result["lacks"] = lacking(jax, jax.devices("gpu")[0])
        print(json.dumps(result), flush=True)
