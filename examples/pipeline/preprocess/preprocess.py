"""Write normalised digits as one file, from MNIST's IDX files in RAW or else from scikit-learn's small digits."""

import gzip
import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

RAW = Path(os.environ.get("RAW", "/data/raw"))
PROCESSED = Path(os.environ.get("PROCESSED", "/data/processed"))


def idx(name: str) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes. The header is 4 bytes and 4 more for each dimension."""
    raw = gzip.decompress((RAW / name).read_bytes())
    dimensions = raw[3]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(np.frombuffer(raw, ">i4", dimensions, 4))


if (RAW / "train-images-idx3-ubyte.gz").exists():
    images = np.concatenate([idx("train-images-idx3-ubyte.gz"), idx("t10k-images-idx3-ubyte.gz")])
    test_labels = idx("t10k-labels-idx1-ubyte.gz")
    labels = np.concatenate([idx("train-labels-idx1-ubyte.gz"), test_labels])
    held_out, source = len(test_labels), "MNIST"
else:
    small, labels = load_digits(return_X_y=True)
    images = np.pad(np.kron(small.reshape(-1, 8, 8) * 255 / 16, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by writer
    images, labels, held_out, source = images[order], labels[order], 297, "scikit-learn's digits"

pixels = ((images / 255 - 0.1307) / 0.3081).astype(np.float32)[:, None]
unfinished = PROCESSED / "unfinished.npz"
np.savez(
    unfinished,
    images=pixels[:-held_out], labels=labels[:-held_out].astype(np.int64),
    test_images=pixels[-held_out:], test_labels=labels[-held_out:].astype(np.int64),
)  # fmt: skip
unfinished.replace(PROCESSED / "digits.npz")  # whole or not at all
print(f"{source}: {len(labels) - held_out} images to train on, {held_out} to test with")
