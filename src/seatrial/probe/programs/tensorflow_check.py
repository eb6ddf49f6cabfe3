"""Runs under the target's own interpreter, as a child: can TensorFlow use each GPU? Prints JSON, the last line counts.

Inside a tf.function: on GPUs newer than the wheel simple operations work, and graphs fail (tensorflow#112272). What not
every script needs, cuDNN and XLA, comes after the first line: LLVM ends the process where it does not know the GPU.
"""

import ctypes.util
import glob
import importlib
import json
import os
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

#: The target's variables that limit memory, wait for other machines, or hide warnings of TensorFlow.
OF_THE_TARGET = ("TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "TF_GPU_ALLOCATOR", "TF_FORCE_UNIFIED_MEMORY")


def check() -> Dict[str, Any]:
    """Return ``{"framework": {name, version, cuda, cudnn, arch_list} or None, "kernels": […], "error": … or None}``."""
    result: Dict[str, Any] = {"framework": None, "kernels": [], "error": None, "lacks": []}
    for name in OF_THE_TARGET:
        os.environ.pop(name, None)
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # the target wants the memory
    try:
        tf = importlib.import_module("tensorflow")
        newer = hasattr(tf.sysconfig, "get_build_info")  # since 2.3
        build = dict(tf.sysconfig.get_build_info()) if newer else {"is_cuda_build": tf.test.is_built_with_cuda()}
        if tf.__version__.startswith("1."):
            tf.compat.v1.enable_v2_behavior()  # in this process alone
    except Exception as error:  # noqa: BLE001  # a broken wheel raises OSError, RuntimeError and worse
        result["error"] = "TensorFlow cannot be imported: %s: %s" % (type(error).__name__, first_line(error))
        return result
    result["framework"] = {
        "name": "tensorflow",
        "version": tf.__version__,
        "cuda": build.get("cuda_version") if build.get("is_cuda_build") else None,
        "cudnn": build.get("cudnn_version"),
        "arch_list": list(build.get("cuda_compute_capabilities") or []),
    }
    if not build.get("is_cuda_build"):
        result["error"] = "tensorflow %s is a CPU-only build" % tf.__version__
        return result
    try:
        devices = tf.config if hasattr(tf.config, "list_physical_devices") else tf.config.experimental  # before 2.1
        gpus = devices.list_physical_devices("GPU")
        tf.config.set_soft_device_placement(False)  # else what has no kernel runs on the CPU, silently
    except Exception as error:  # noqa: BLE001
        result["error"] = "TensorFlow cannot start CUDA: %s" % first_line(error)
        return result
    if not gpus:
        result["error"] = "TensorFlow %s finds no GPU" % tf.__version__
        for library in missing():
            sys.stderr.write("Could not load dynamic library '%s'\n" % library)
    result["kernels"] = [try_graph(tf, index) for index in range(len(gpus))]
    return result


def missing() -> List[str]:
    """Return the libraries that TensorFlow opens before it lists a GPU and that are in no place where it looks.

    It prints "Could not find cuda drivers" where libcudart is not found (2.21: tsl/cuda/cudart_stub.cc), or nothing.
    """
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    try:
        for place in importlib.import_module("nvidia").__path__:
            folders += glob.glob(os.path.join(place, "*", "lib"))
    except ImportError:
        pass
    names = ("cudart", "cublas", "cufft", "cusolver", "cusparse", "cudnn")
    return [
        "lib%s.so" % name
        for name in names
        if not any(glob.glob(os.path.join(folder, "lib%s.so*" % name)) for folder in folders if folder)
        and not ctypes.util.find_library(name)
    ]


def try_graph(tf: Any, index: int, kind: str = "GPU") -> Dict[str, Any]:
    """Run a matrix product and what follows one, as a graph on the device, and compare it with NumPy's."""
    numpy = importlib.import_module("numpy")
    start_s = time.monotonic()
    error: Optional[str] = None
    try:
        # Small whole numbers: exact in float32, so that TF32 or another order of summation changes nothing.
        a_MK = (numpy.arange(64 * 32).reshape(64, 32) % 7).astype("float32")
        b_KN = (numpy.arange(32 * 64).reshape(32, 64) % 5).astype("float32")
        device = "/%s:%d" % (kind, index)

        def graph(a_MK: Any, b_KN: Any) -> Any:
            with tf.device(device):
                return tf.nn.relu(tf.matmul(a_MK, b_KN) * 2.0 + 1.0)  # the kernels behind cuBLAS' are TensorFlow's own

        c_MN = tf.function(graph)(tf.constant(a_MK), tf.constant(b_KN))
        if kind not in c_MN.device or not numpy.array_equal(c_MN.numpy(), a_MK @ b_KN * 2.0 + 1.0):
            error = "a graph on %s differs from the CPU's" % device
    except Exception as failure:  # noqa: BLE001
        error = first_line(failure)
    milliseconds = round((time.monotonic() - start_s) * 1000, 1)
    return {"index": index, "ok": error is None, "ms": milliseconds, "error": error}


def lacking(tf: Any, kind: str = "GPU") -> List[str]:
    """Return the failures on the first device of parts that only some scripts need: a convolution (cuDNN), XLA
    (ptxas, libdevice)."""

    def convolution() -> Any:
        return tf.nn.conv2d(tf.ones((1, 8, 8, 4)), tf.ones((3, 3, 4, 4)), 1, "SAME")

    def compiled() -> Any:
        return tf.tanh(tf.ones((8, 8)) @ tf.ones((8, 8)))

    failed = []
    parts: List[Tuple[str, Any, Dict[str, bool]]] = [("a convolution", convolution, {})]
    if not tf.__version__.startswith("1."):  # which has no jit_compile
        parts.append(("XLA", compiled, {"jit_compile": True}))
    for name, graph, options in parts:
        try:
            with tf.device("/%s:0" % kind):
                tf.function(graph, **options)().numpy()
        except Exception as failure:  # noqa: BLE001
            failed.append("%s: %s" % (name, first_line(failure)))
    return failed


def first_line(error: Exception) -> str:
    """Return an error's plain line: TensorFlow puts the graph's nodes before it, and stacks behind it."""
    lines = [line.strip() for line in str(error).splitlines()]
    plain = [line for line in lines if line and not line.startswith(("{{", "[[", "Detected at node"))]
    return (plain or lines or [type(error).__name__])[0] or type(error).__name__


if __name__ == "__main__":
    result = check()
    print(json.dumps(result), flush=True)
    if any(kernel["ok"] for kernel in result["kernels"]):
        result["lacks"] = lacking(importlib.import_module("tensorflow"))
        print(json.dumps(result), flush=True)
