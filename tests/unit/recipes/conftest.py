"""Data that recipes of MNIST's kind are tried on."""

import struct
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 12×12 images: a bright bar at the left, in the middle or at the right, in noise."""
    return bars(tmp_path_factory.mktemp("idx"), 12)


@pytest.fixture(scope="module")
def wide_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fewer of 16×16, which mnist-deep takes."""
    return bars(tmp_path_factory.mktemp("idx"), 16, (96, 30))


def bars(folder: Path, pixels: int, counts: tuple[int, int] = (300, 90)) -> Path:
    """So many such images for training and test in a folder."""
    np = pytest.importorskip("numpy")
    numbers = np.random.default_rng(0)
    for part, count in zip(("train", "t10k"), counts, strict=True):
        labels = numbers.integers(0, 3, count).astype(np.uint8)
        images = numbers.integers(0, 100, (count, pixels, pixels)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 4 * label : 4 * label + 3] += 120
        for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            header = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (folder / f"{part}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder
