"""CIFAR-10 as tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from seatrial.train.data.cifar10_files import RECORDS, read_records
from seatrial.train.data.idx import Bytes
from seatrial.train.data.images import ImageSet

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def read_cifar10(folder: Path) -> tuple[ImageSet, ImageSet]:
    """Training and test set of a folder. Raises DataError as ``read_records`` does."""
    return image_sets(read_records(folder))


def image_sets(records: Bytes) -> tuple[ImageSet, ImageSet]:
    """Training and test set of what ``read_records`` gives."""
    together = torch.from_numpy(records)
    return _image_set(together[:-RECORDS]), _image_set(together[-RECORDS:])


def _image_set(records: Tensor) -> ImageSet:
    return ImageSet(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long(), len(CLASSES))
