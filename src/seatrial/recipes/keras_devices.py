"""The devices of a recipe in Keras: one, or several of one process, each with an equal part of every batch.

TensorFlow mirrors the weights (tf.distribute.MirroredStrategy); JAX shards the batch (keras.distribution.DataParallel,
which is jax.sharding). On a CPU several devices are TensorFlow's logical ones, or XLA's
(``--xla_force_host_platform_device_count``).
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from seatrial.train.data.idx import Bytes


@dataclass(frozen=True)
class Devices:
    """``names``: of the framework's. ``words``: for people."""

    framework: str
    names: tuple[str, ...]
    words: str

    @property
    def count(self) -> int:
        return max(1, len(self.names))

    @property
    def shares(self) -> int:
        """Every batch is a multiple of it: JAX cuts into equal parts only, and Keras' evaluation fails with others on
        TensorFlow 2.21."""
        return self.count

    def scope(self, keras: Any) -> AbstractContextManager[Any]:
        """The model is made, compiled and restored in it."""
        if self.count == 1:
            return nullcontext()
        if self.framework == "jax":
            keras.distribution.set_distribution(
                keras.distribution.DataParallel(devices=keras.distribution.list_devices())
            )
            return nullcontext()
        tensorflow: Any = importlib.import_module("tensorflow")
        scope: AbstractContextManager[Any] = tensorflow.distribute.MirroredStrategy(list(self.names)).scope()
        return scope


def devices(framework: str) -> Devices:
    """GPUs that this process sees, else the parts of its CPU. TensorFlow and JAX start them here."""
    library: Any = importlib.import_module(framework)
    if framework == "jax":
        found = library.local_devices()
        names, kinds = [str(each) for each in found], [each.device_kind for each in found]
    else:
        physical = library.config.list_physical_devices("GPU")
        details = library.config.experimental.get_device_details
        kinds = [details(each).get("device_name", "GPU") for each in physical] or ["cpu"]
        names = [each.name for each in library.config.list_logical_devices("GPU" if physical else "CPU")]
    words = kinds[0] if len(names) < 2 else f"{len(names)} × {kinds[0]}"
    return Devices(framework, tuple(names), words)


def tested(model: Any, images: Bytes, labels: Any, batch: int, used: Devices) -> dict[str, float]:
    """``test_loss`` and ``accuracy`` of all images."""
    batch = max(1, batch // used.shares) * used.shares
    missing = -len(labels) % used.shares
    if not missing:
        told = model.evaluate(images, labels, batch_size=batch, verbose=0, return_dict=True)
        return {"test_loss": float(told["loss"]), "accuracy": float(told["accuracy"])}
    # The last batch is filled up with images whose answers are not looked at.
    filled = np.concatenate([images, np.repeat(images[:1], missing, axis=0)])
    logits_NC = np.asarray(model.predict(filled, batch_size=batch, verbose=0), np.float64)[: len(labels)]
    highest_N1 = logits_NC.max(axis=1, keepdims=True)
    normal_N = np.log(np.exp(logits_NC - highest_N1).sum(axis=1)) + highest_N1[:, 0]
    right_N = logits_NC[np.arange(len(labels)), labels]
    return {
        "test_loss": float((normal_N - right_N).mean()),
        "accuracy": float((logits_NC.argmax(axis=1) == labels).mean()),
    }
