"""Train a small convolutional network on MNIST in Keras 3, on TensorFlow, JAX or torch.

``KERAS_BACKEND`` names the framework. ``--data`` is a folder with MNIST's four IDX files. Without them random images
stand in, which show that everything is installed and nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from pathlib import Path

import keras
import numpy as np
from keras import layers


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read an IDX file of unsigned bytes, plain or gzipped. The header is 4 bytes and 4 more for each dimension."""
    packed = folder / f"{name}.gz"
    raw = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    dimensions = raw[3]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(np.frombuffer(raw, ">i4", dimensions, 4))


def load(folder: Path) -> list[np.ndarray]:
    """Return training images [N, 28, 28], their labels [N], test images and their labels, all of bytes."""
    if not any(folder.glob("train-images-idx3-ubyte*")):
        print(f"data: no MNIST in {folder}; random images")
        images = np.random.default_rng(0).integers(256, size=(700, 28, 28), dtype=np.uint8)
        labels = (np.arange(700) % 10).astype(np.uint8)
        return [images[:600], labels[:600], images[600:], labels[600:]]
    print(f"data: MNIST from {folder}")
    kinds = ("images-idx3", "labels-idx1")
    return [read_idx(folder, f"{part}-{kind}-ubyte") for part in ("train", "t10k") for kind in kinds]


def network(mean: float, deviation: float) -> keras.Model:
    """Return two convolutions and two dense layers that take bytes, so that the saved model needs no preprocessing."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1), dtype="uint8"),
            layers.Rescaling(1 / deviation, -mean / deviation),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def report(epoch: int, logs: dict[str, float]) -> None:
    """Write the numbers of an epoch where seatrial reads them."""
    with Path(os.environ.get("SEATRIAL_EVENTS", os.devnull)).open("a") as numbers:
        print(
            json.dumps({"epoch": epoch + 1, "loss": logs["loss"], "test_accuracy": logs["val_accuracy"]}), file=numbers
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--data", type=Path, default=Path(os.environ.get("SEATRIAL_DATA_DIR", "data")))
    options.add_argument("--models", type=Path, default=Path(os.environ.get("SEATRIAL_MODELS_DIR", "models")))
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--batch", type=int, default=64, help="on each device")
    given = options.parse_args()

    keras.utils.set_random_seed(0)
    images, labels, test_images, test_labels = load(given.data)
    devices = 1
    if keras.backend.backend() == "jax" and len(keras.distribution.list_devices()) > 1:
        # One process on all GPUs. TensorFlow needs tf.distribute.MirroredStrategy().scope() around the model instead.
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()))
        devices = len(keras.distribution.list_devices())
    model = network(float(images.mean()), float(images.std()))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    print(f"Keras {keras.__version__} on {keras.backend.backend()}, batch {given.batch} on each of {devices} devices")
    count = len(labels) - len(labels) % devices  # JAX cuts a batch into equal parts only
    model.fit(
        images[:count, ..., None], labels[:count].astype("int32"), batch_size=given.batch * devices, verbose=2,
        epochs=given.epochs, validation_data=(test_images[..., None], test_labels.astype("int32")),
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=report)],
    )  # fmt: skip
    given.models.mkdir(parents=True, exist_ok=True)
    model.save(given.models / "mnist.keras")
    print(f"saved {given.models / 'mnist.keras'}")


if __name__ == "__main__":
    main()
