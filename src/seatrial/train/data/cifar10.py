"""Read the official binary files of CIFAR-10: six of 10,000 records, a label byte and 3 × 32 × 32 image bytes each.

Files are read while torch is imported, so torch is imported only where tensors are made.
Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import tarfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seatrial.train.data.mnist import Bytes
from seatrial.train.errors import DataError

if TYPE_CHECKING:
    from seatrial.train.data.images import ImageSet

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORDS, RECORD_BYTES = 10_000, 1 + 3 * 32 * 32
#: MD5 of the files inside cifar-10-binary.tar.gz (MD5 of that: c32a1d4ab5d03f1284b67883e8d87530, the site's value).
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
#: Six files of 30,730,000 bytes, and a margin for the rest.
ARCHIVE_BYTES = 200_000_000
ARCHIVE, FOLDER = "cifar-10-binary.tar.gz", "cifar-10-batches-bin"


def read_records(folder: Path) -> Bytes:
    """Read all records, [60000, 3073], the test set's last, from ``.bin``, ``.bin.xz`` or the archive.

    They lie in ``folder`` or a usual subfolder. Raises DataError: a file is missing or differs from the published.
    """
    if not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist", fix="name it with --data DIR")
    with ThreadPoolExecutor(len(MD5)) as threads:  # lzma and md5 release the interpreter lock
        return np.concatenate(list(threads.map(lambda name: _records(folder, name), MD5)))


def _records(folder: Path, name: str) -> Bytes:
    path, content = _content(folder, name)
    if len(content) != RECORDS * RECORD_BYTES:
        raise DataError(f"{path} is truncated or too long: expected {RECORDS * RECORD_BYTES} bytes, got {len(content)}")
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5[name]:
        raise DataError(f"{path} differs from the published {name}: its MD5 is not {MD5[name]}")
    return np.frombuffer(content, dtype=np.uint8).reshape(RECORDS, RECORD_BYTES)


def _content(folder: Path, name: str) -> tuple[Path, bytes]:
    """Return the file that was found, and at most one byte more of it than there should be."""
    most_bytes = RECORDS * RECORD_BYTES + 1
    for place in (folder, folder / FOLDER, folder / "cifar10"):
        if (plain := place / name).is_file():
            with plain.open("rb") as file:
                return plain, file.read(most_bytes)
        if (packed := place / f"{name}.xz").is_file():
            try:
                with lzma.open(packed) as unpacked:
                    return packed, unpacked.read(most_bytes)
            except (lzma.LZMAError, EOFError) as error:
                raise DataError(f"{packed} is not a whole xz file: {error}") from error
    if (archive := folder / ARCHIVE).is_file():
        return archive, _archived(archive, f"{FOLDER}/{name}", most_bytes)
    raise DataError(f"{folder} lacks {name} (or {name}.xz, {FOLDER}/, {ARCHIVE})")


def _archived(archive: Path, name: str, most_bytes: int) -> bytes:
    """Read a file of the archive, within as many bytes as the published one unpacks to."""
    try:
        with gzip.open(archive) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as files:
            for member in files:
                if member.offset_data + member.size > ARCHIVE_BYTES:
                    break
                if member.name == name and member.isfile() and (file := files.extractfile(member)) is not None:
                    return file.read(most_bytes)
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, OverflowError) as error:
        raise DataError(f"{archive} is not a whole archive: {error}") from error
    raise DataError(f"{archive} lacks {name}")


def image_sets(records: Bytes) -> tuple[ImageSet, ImageSet]:
    """Return training and test set as tensors, from all records."""
    import torch

    from seatrial.train.data.images import ImageSet

    def image_set(part: torch.Tensor) -> ImageSet:
        return ImageSet(part[:, 1:].reshape(-1, 3, 32, 32), part[:, 0].long(), len(CLASSES))

    together = torch.from_numpy(records)
    return image_set(together[:-RECORDS]), image_set(together[-RECORDS:])
