"""Verifies a built image: run inside it, on the standard library and the image's own packages. Prints one line of JSON.

Sent as text to the image's Python; nothing of seatrial is in there.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import Any

#: Rows and columns of the matrices that verify a number format.
_SIDE = 64
_FLOATS = ("float32", "float64", "float16", "bfloat16")


def main() -> None:
    """Run the verification and print its JSON; argv: import names, with commas; ``gpu`` or ``cpu``."""
    names, gpu = [name for name in sys.argv[1].split(",") if name], sys.argv[2] == "gpu"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found: dict[str, Any] = {"python": python, "imports": {}, "errors": {}, "versions": {}}
    for name in names:
        start = time.perf_counter()
        try:
            importlib.import_module(name)
            found["imports"][name] = round(time.perf_counter() - start, 3)
        except Exception as error:  # noqa: BLE001  any error is the answer
            found["errors"][name] = f"{type(error).__name__}: {str(error)[:300]}"
    for package in ("torch", "tensorflow", "tensorflow-cpu", "jax"):
        with suppress(metadata.PackageNotFoundError):
            found["versions"][package] = metadata.version(package)
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
    found["kernels"] = {device: _kernels(partial(_torch_product, torch, device)) for device in devices}
    found["training"] = _trained(found, lambda: _train(torch, "cpu"))
    if gpu:
        _trained(found, lambda: _train(torch, "cuda"))


def _tensorflow(found: dict[str, Any], gpu: bool) -> None:
    tf: Any = sys.modules["tensorflow"]
    if hasattr(tf.sysconfig, "get_build_info"):  # before 2.3, nothing names the CUDA of a build
        found["cuda"] = tf.sysconfig.get_build_info().get("cuda_version")
    if tf.__version__.startswith("1."):
        tf.compat.v1.enable_v2_behavior()
    found["kernels"] = {}
    found["training"] = _trained(found, lambda: _train_tensorflow(tf, "CPU:0"))
    if gpu:
        _trained(found, lambda: _train_tensorflow(tf, "GPU:0"))
    devices = tf.config if hasattr(tf.config, "list_logical_devices") else tf.config.experimental  # before 2.1
    for device in devices.list_logical_devices("GPU" if gpu else "CPU"):

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
    found["training_gpu" if gpu else "training"] = _trained(found, lambda: _train_jax(jax, devices[0]))
    for device in devices:

        def product(name: str, device: Any = device) -> float | None:
            if name not in _FLOATS or name == "float64":  # jax computes in float32 by default
                return None
            numbers = jax.device_put(jax.numpy.ones((_SIDE, _SIDE), dtype=name), device)
            return float((numbers @ numbers)[0, 0])

        found["kernels"][str(device).lower()] = _kernels(product)


def _trained(found: dict[str, Any], train: Callable[[], str]) -> str | None:
    try:
        return train()
    except Exception as error:  # noqa: BLE001  as above
        found["errors"]["training"] = f"{type(error).__name__}: {str(error)[:300]}"
        return None


def _train(torch: Any, device: str) -> str:
    """Train a small network for five steps; return a digest of its weights, equal for equal libraries."""
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 26 * 26, 10))
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.randn(16, 1, 28, 28).to(device)
    labels = torch.randint(0, 10, (16,)).to(device)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return _digest(each.detach().cpu().numpy() for each in model.parameters())


def _train_tensorflow(tf: Any, device: str) -> str:
    """Train it in TensorFlow; on the CPU each second step by XLA, which ends the process on GPUs it does not know."""
    later = hasattr(tf.config.experimental, "enable_op_determinism")  # than 2.7
    if later:
        tf.config.experimental.enable_op_determinism()
    generators = tf.random if hasattr(tf.random, "Generator") else tf.random.experimental  # before 2.1
    random = generators.Generator.from_seed(0)
    with tf.device(device):
        images_NHWC, labels = random.normal((16, 28, 28, 1)), tf.one_hot(tf.range(16) % 10, 10)
        weights = [tf.Variable(random.normal(shape) * 0.01) for shape in ((3, 3, 1, 8), (8 * 26 * 26, 10))]

        def step() -> None:
            with tf.GradientTape() as tape:
                hidden = tf.nn.relu(tf.nn.conv2d(images_NHWC, weights[0], 1, "VALID"))
                logits = tf.reshape(hidden, (16, -1)) @ weights[1]
                loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            for place, gradient in enumerate(tape.gradient(loss, weights)):
                weights[place].assign_sub(0.1 * gradient)

        steps = [tf.function(step)]
        steps += [tf.function(step, jit_compile=True)] if later and device == "CPU:0" else []
        for each in steps * 5:
            each()
    return _digest(weight.numpy() for weight in weights)


def _train_jax(jax: Any, device: Any) -> str:
    """Train the same network in JAX."""
    jnp, lax = jax.numpy, jax.lax

    def loss(weights: Any, images_NCHW: Any, labels: Any) -> Any:
        hidden = jax.nn.relu(lax.conv(images_NCHW, weights[0], (1, 1), "VALID")).reshape(16, -1)
        return -(jax.nn.log_softmax(hidden @ weights[1]) * labels).sum(1).mean()

    def updated(weights: Any, images_NCHW: Any, labels: Any) -> Any:
        gradients = jax.grad(loss)(weights, images_NCHW, labels)
        return [weights[at] - 0.1 * gradients[at] for at in range(len(weights))]

    with jax.default_device(device):
        keys = jax.random.split(jax.random.key(0), 3)
        images_NCHW, labels = jax.random.normal(keys[0], (16, 1, 28, 28)), jnp.eye(10)[jnp.arange(16) % 10]
        filters, matrix = jax.random.normal(keys[1], (8, 1, 3, 3)), jax.random.normal(keys[2], (8 * 26 * 26, 10))
        weights, step = [filters * 0.01, matrix * 0.01], jax.jit(updated)
        for _ in range(5):
            weights = step(weights, images_NCHW, labels)
    return _digest(jax.device_get(weight) for weight in weights)


def _digest(arrays: Iterable[Any]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def _kernels(product: Callable[[str], float | None]) -> dict[str, str]:
    """Compute a matrix product per number format on one device; return format → "" or why it failed."""
    answers = {}
    for name in (*_FLOATS, "int8", "float8_e4m3fn"):
        try:
            value = product(name)
            if value is not None:
                answers[name] = "" if value == _SIDE else f"{_SIDE} ones add up to {value}"
        except Exception as error:  # noqa: BLE001  as above
            answers[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return answers


def _torch_product(torch: Any, device: str, name: str) -> float | None:
    """Compute one element of the product of two matrices of ones; None where the device has no such format."""
    capability = torch.cuda.get_device_capability(device) if device != "cpu" else None
    ones = torch.ones(_SIDE, _SIDE, device=device)
    if capability and name == "bfloat16" and capability < (8, 0):
        return None
    if name == "int8":
        ones = ones.to(torch.int8)
        return float(torch._int_mm(ones, ones)[0, 0])
    if name == "float8_e4m3fn":
        if not capability or capability < (8, 9) or not hasattr(torch, name):
            return None
        ones, one = ones.to(torch.float8_e4m3fn), torch.ones((), device=device)
        return float(torch._scaled_mm(ones, ones.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)[0, 0])
    ones = ones.to(getattr(torch, name))
    return float((ones @ ones)[0, 0])


if __name__ == "__main__":
    main()
