"""Reading IDX files: real ones made here, and every way they can be wrong."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from seatrial.train.data.mnist import read_folder, read_idx
from seatrial.train.errors import DataError


def write_idx(path: Path, array: np.ndarray) -> None:
    content = struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_folder(folder: Path, train: int = 20, test: int = 10, gz: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        write_idx(folder / f"{part}-images-idx3-ubyte{gz}", numbers.integers(0, 256, (count, 12, 14), np.uint8))
        write_idx(folder / f"{part}-labels-idx1-ubyte{gz}", (np.arange(count) % 3).astype(np.uint8))


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("layout", [".", "MNIST/raw"])
def test_reads_the_official_layouts(tmp_path: Path, gz: str, layout: str) -> None:
    write_folder(tmp_path / layout, gz=gz)
    data = read_folder(tmp_path)
    assert data.train_images.shape == (20, 12, 14)
    assert data.test_labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert data.classes == 3


def test_truncation_names_file_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "images"
    write_idx(path, np.zeros((5, 4, 4), np.uint8))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"images is truncated: expected 96 bytes for shape \(5, 4, 4\), got 95"):
        read_idx(path, 3)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PNG\r" + bytes(40), "is not IDX with 3 dimensions: magic 0x504e470d"),
        (b"\0\0\x08", "expected at least 16 bytes, got 3"),
        (struct.pack(">4I", 0x803, 1, 2, 2) + bytes(5), "is too long: expected 20 bytes"),
        (struct.pack(">4I", 0x803, 0, 2, 2), "holds no examples"),
    ],
)
def test_other_bytes_are_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        read_idx(path, 3)


def test_torn_gzip(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    write_idx(path, np.zeros((50, 4, 4), np.uint8))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="is not a whole gzip file"):
        read_idx(path, 3)


def test_folder_missing_empty_or_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_folder(tmp_path / "none")
    with pytest.raises(DataError, match="is empty"):
        read_folder(tmp_path)
    (tmp_path / "cat.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="holds no IDX files"):
        read_folder(tmp_path)


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    write_folder(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"10 images but .* has 3 labels"):
        read_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="lacks t10k-labels-idx1-ubyte"):
        read_folder(tmp_path)
