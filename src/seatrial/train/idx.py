"""IDX, the format of the original MNIST files: a magic number, the sizes, then unsigned bytes.

Source: the format's description on Yann LeCun's MNIST page (http://yann.lecun.com/exdb/mnist/): two zero bytes,
the element type (8 = unsigned byte), the number of dimensions, each size as a big-endian 32-bit integer, data.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seatrial.train.errors import DataError

Bytes = npt.NDArray[np.uint8]

UNSIGNED_BYTE = 0x08
#: Where the official downloads and torchvision's ``MNIST(root)`` put the files, below the folder given.
LAYOUTS = (".", "mnist", "raw", "MNIST/raw")


@dataclass(frozen=True)
class IdxFolder:
    """A training and a test set: images [N, H, W] and labels [N], unsigned bytes, H and W the same in both."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    @property
    def classes(self) -> int:
        """How many classes the labels span, 0 up to the largest."""
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The array in one IDX file, ``.gz`` or plain.

    Raises:
        DataError: not IDX, of other dimensions, truncated or too long; names the file, bytes expected and got.
    """
    content = _content(path)
    header_bytes = 4 + 4 * dimensions
    if len(content) < header_bytes:
        raise DataError(f"{path} is truncated: expected at least {header_bytes} bytes, got {len(content)}")
    magic = struct.unpack(">I", content[:4])[0]
    expected_magic = UNSIGNED_BYTE << 8 | dimensions
    if magic != expected_magic:
        raise DataError(
            f"{path} is not IDX with {dimensions} dimensions: magic {magic:#010x}, not {expected_magic:#010x}"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    expected_bytes = header_bytes + prod(shape)
    if len(content) != expected_bytes:
        state = "truncated" if len(content) < expected_bytes else "too long"
        raise DataError(f"{path} is {state}: expected {expected_bytes} bytes for shape {shape}, got {len(content)}")
    if prod(shape) == 0:
        raise DataError(f"{path} holds no examples: shape {shape}")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def read_folder(folder: Path) -> IdxFolder:
    """The four files of an MNIST-like set.

    Raises:
        DataError: the folder or a file is missing, or images and labels do not belong together.
    """
    place = _place(folder)
    sets = []
    for part in ("train", "t10k"):
        images_path, labels_path = _find(place, f"{part}-images", 3), _find(place, f"{part}-labels", 1)
        images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
        if len(images) != len(labels):
            raise DataError(f"{images_path} has {len(images)} images but {labels_path} has {len(labels)} labels")
        sets.append((images, labels))
    (train_images, train_labels), (test_images, test_labels) = sets
    if train_images.shape[1:] != test_images.shape[1:]:
        raise DataError(
            f"{place}: training images are {train_images.shape[1:]} but test images {test_images.shape[1:]} pixels"
        )
    return IdxFolder(train_images, train_labels, test_images, test_labels)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}; got {len(raw)} bytes") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _place(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} is not there", fix="name it with --data DIR, or add --download")
    for layout in LAYOUTS:
        if any((folder / layout).glob("train-images*")):
            return folder / layout
    state = "holds no IDX files" if any(folder.iterdir()) else "is empty"
    raise DataError(f"the data folder {folder} {state} (train-images-idx3-ubyte[.gz] …)", fix="add --download")


def _find(place: Path, stem: str, dimensions: int) -> Path:
    names = [f"{stem}{separator}idx{dimensions}-ubyte{gz}" for separator in "-." for gz in ("", ".gz")]
    for name in names:
        if (place / name).is_file():
            return place / name
    raise DataError(f"{place} lacks {names[0]} (or .gz)", fix="add --download")
