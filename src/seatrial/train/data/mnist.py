"""Fetch and read MNIST's files, and others in their format, IDX: a magic number, the sizes, then unsigned bytes.

Imports no framework: files are read while one is imported.

Source: the format's description on Yann LeCun's MNIST page (http://yann.lecun.com/exdb/mnist/): two zero bytes,
the element type (8 = unsigned byte), the number of dimensions, each size as a big-endian 32-bit integer, data.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import struct
import urllib.request
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seatrial.train.errors import DataError
from seatrial.train.saving.atomic import write_file

Bytes = npt.NDArray[np.uint8]

UNSIGNED_BYTE = 0x08
#: Pictures are packed to a third or a tenth, zeros alone to a thousandth; small files may be anything.
_MOST_PACKED, _MUCH_BYTES = 100, 64 * 2**20
#: Folders of the files below the given one: of the official downloads, and of torchvision's ``MNIST(root)``.
LAYOUTS = (".", "mnist", "raw", "MNIST/raw")

#: Seconds that a mirror may be silent for.
TIMEOUT_S = 60


#: Public mirrors of the original files, as torchvision 0.27 (datasets/mnist.py) and TensorFlow Datasets name them.
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
#: Name of each file → SHA-256 of the whole file as downloaded; MD5 are the ones that torchvision publishes (f68b3c2d…,
#: d53e105e…, 9fb629c4…, ec29112d…).
FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


@dataclass(frozen=True)
class IdxFolder:
    """A training and a test set: images [N, H, W] and labels [N], unsigned bytes, H and W the same in both."""

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    @property
    def classes(self) -> int:
        """Return the number of classes, 0 up to the largest label."""
        return int(max(self.train_labels.max(), self.test_labels.max())) + 1


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Read the array in an IDX file, ``.gz`` or plain. Raises DataError: not IDX, other dimensions, another length."""
    header_bytes, expected_magic, size = 4 + 4 * dimensions, UNSIGNED_BYTE << 8 | dimensions, 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            size = path.stat().st_size
            header = file.read(header_bytes)
            if len(header) < header_bytes:
                raise DataError(f"{path} is truncated: expected at least {header_bytes} bytes, got {len(header)}")
            magic, *sizes = struct.unpack(f">{1 + dimensions}I", header)
            shape = tuple(sizes)
            if magic != expected_magic:
                raise DataError(
                    f"{path} is not IDX with {dimensions} dimensions: magic {magic:#010x}, not {expected_magic:#010x}"
                )
            if prod(shape) == 0:
                raise DataError(f"{path} holds no examples: shape {shape}")
            claimed_bytes = header_bytes + prod(shape)
            if claimed_bytes > max(_MUCH_BYTES, _MOST_PACKED * size):
                raise DataError(f"{path} has {size} bytes and claims to hold {claimed_bytes}: not plausible for images")
            content = file.read(claimed_bytes - header_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is not a whole gzip file: {error}; got {size} bytes") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    got = header_bytes + len(content)
    if got != claimed_bytes:
        state, found = ("truncated", got) if got < claimed_bytes else ("too long", "more")
        raise DataError(f"{path} is {state}: expected {claimed_bytes} bytes for shape {shape}, got {found}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_folder(folder: Path) -> IdxFolder:
    """Read the four files of an MNIST-like set. Raises DataError if one is missing, or images and labels do not fit."""
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


def _place(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist", fix="name it with --data DIR, or add --download")
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


def fetch(folder: Path) -> None:
    """Make every file of MNIST present in ``folder``; one that is there with the right checksum is kept.

    Raises DataError, with what each mirror did, if none gave the file, and DiskFullError if it could not be written.
    """
    for name, sha256 in FILES.items():
        path = folder / name
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
            continue
        content = _first_good(name, sha256)
        write_file(path, lambda out, content=content: out.write(content))  # type: ignore[misc]
        print(f"downloaded {path} ({len(content):,} bytes)", flush=True)


def _first_good(name: str, sha256: str) -> bytes:
    failures = []
    for mirror in MIRRORS:
        url = mirror + name
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                content: bytes = response.read()
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            failures.append(f"{url}: {getattr(error, 'reason', error)}")
            continue
        got = hashlib.sha256(content).hexdigest()
        if got == sha256:
            return content
        failures.append(f"{url}: SHA-256 is {got}, expected {sha256}")
    raise DataError(f"cannot download {name}: " + "; ".join(failures), fix="put the file in --data DIR manually")
