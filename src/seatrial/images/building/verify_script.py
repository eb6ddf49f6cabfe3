"""Verifies a built image: run inside it, on the standard library and the image's own packages. Prints one line of JSON.

Sent as text to the image's Python; nothing of seatrial is in there.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

#: Rows and columns of the matrices that verify a number format.
_SIDE = 64
_FLOATS = ("float32", "float64", "float16", "bfloat16")
_FORMATS = (*_FLOATS, "int8", "float8_e4m3fn")


def main() -> None:
    """argv: import names, with commas; ``gpu`` or ``cpu``."""
    names, gpu = [name for name in sys.argv[1].split(",") if name], sys.argv[2] == "gpu"
    found: dict[str, Any] = {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "imports": {},
        "errors": {},
        "versions": {},
    }
    for name in names:
        start = time.perf_counter()
        try:
            importlib.import_module(name)
            found["imports"][name] = round(time.perf_counter() - start, 3)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
            found["errors"][name] = f"{type(error).__name__}: {str(error)[:300]}"
    for package in ("torch", "tensorflow", "tensorflow-cpu", "jax"):
        try:
            found["versions"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    if "torch" in sys.modules:
        _torch(found, gpu)
    elif "tensorflow" in sys.modules:
        _tensorflow(found, gpu)
    elif "jax" in sys.modules:
        _jax(found, gpu)
    sys.stdout.write(json.dumps(found) + "\n")


def _torch(found: dict[str, Any], gpu: bool) -> None:
    torch: Any = sys.modules["torch"]
    found["versions"]["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else ""
    found["architectures"] = (flags or "").split()
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if gpu else ["cpu"]
    found["kernels"] = {device: _kernels(_TorchProduct(torch, device)) for device in devices}
    try:
        found["training"] = _train(torch, "cpu")
        if gpu:
            found["training_gpu"] = _train(torch, "cuda")
    except Exception as error:  # noqa: BLE001  as above
        found["errors"]["training"] = f"{type(error).__name__}: {str(error)[:300]}"


def _tensorflow(found: dict[str, Any], gpu: bool) -> None:
    tf: Any = sys.modules["tensorflow"]
    found["cuda"] = tf.sysconfig.get_build_info().get("cuda_version")
    found["kernels"] = {}
    for device in tf.config.list_logical_devices("GPU" if gpu else "CPU"):

        def product(name: str, device: Any = device) -> float | None:
            if name not in _FLOATS:
                return None
            with tf.device(device.name):
                numbers = tf.cast(tf.ones((_SIDE, _SIDE)), name)
                return float(tf.cast(tf.linalg.matmul(numbers, numbers)[0, 0], "float32"))

        found["kernels"][device.name.rpartition("device:")[2].lower()] = _kernels(product)


def _jax(found: dict[str, Any], gpu: bool) -> None:
    jax: Any = sys.modules["jax"]
    found["kernels"] = {}
    try:
        devices = jax.devices("gpu" if gpu else "cpu")
    except RuntimeError as error:  # no such devices
        found["errors"]["jax"] = str(error)[:300]
        return
    for device in devices:

        def product(name: str, device: Any = device) -> float | None:
            if name not in _FLOATS or name == "float64":  # jax computes in float32 unless told otherwise
                return None
            numbers = jax.device_put(jax.numpy.ones((_SIDE, _SIDE), dtype=name), device)
            return float((numbers @ numbers)[0, 0])

        found["kernels"][str(device).lower()] = _kernels(product)


def _train(torch: Any, device: str) -> str:
    """Digest of a small network's weights after five steps: equal for equal libraries."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 26 * 26, 10)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.randn(16, 1, 28, 28).to(device)
    labels = torch.randint(0, 10, (16,)).to(device)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    weights = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
    return hashlib.sha256(weights).hexdigest()[:16]


def _kernels(product: Callable[[str], float | None]) -> dict[str, str]:
    """A matrix product per number format on one device: format → "" or why it failed."""
    answers = {}
    for name in _FORMATS:
        try:
            value = product(name)
            if value is not None:
                answers[name] = "" if value == _SIDE else f"{_SIDE} ones add up to {value}"
        except Exception as error:  # noqa: BLE001  as above
            answers[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return answers


class _TorchProduct:
    """One element of the product of two matrices of ones; None where the device has no such format."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device = torch, device
        self.capability = torch.cuda.get_device_capability(device) if device != "cpu" else None

    def __call__(self, name: str) -> float | None:
        torch, ones = self.torch, self.torch.ones(_SIDE, _SIDE, device=self.device)
        if self.capability and name == "bfloat16" and self.capability < (8, 0):
            return None
        if name == "int8":
            ones = ones.to(torch.int8)
            return float(torch._int_mm(ones, ones)[0, 0])
        if name == "float8_e4m3fn":
            if not self.capability or self.capability < (8, 9) or not hasattr(torch, name):
                return None
            ones, one = ones.to(torch.float8_e4m3fn), torch.ones((), device=self.device)
            return float(torch._scaled_mm(ones, ones.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)[0, 0])
        ones = ones.to(getattr(torch, name))
        return float((ones @ ones)[0, 0])


if __name__ == "__main__":
    main()
