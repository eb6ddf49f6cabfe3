"""Make batches of image sets for the recipes: bytes that are augmented and normalised on the device.

Augmentation draws from torch's default generator, seeded differently on each rank; it keeps a batch's shape and can be
captured in a CUDA graph.

Shapes: N examples of the set, B rows of a batch, C channels, H and W pixels, S steps of an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from seatrial.train.data.batches import ResidentBatches, StreamedBatches, Transform
from seatrial.train.data.order import Order, Shape, deal
from seatrial.train.distributed import Ranks
from seatrial.train.errors import DataError
from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import cdiv, channels_last, module
from seatrial.train.memory import RESIDENT_SHARE, free_bytes
from seatrial.train.saving.examples import Normalisation

#: Changes images_BCHW of numbers 0 … 255, before they are normalised: pixels from outside are black.
Augment = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ImageSet:
    """Images [N, C, H, W], uint8, and labels [N], int64, 0 … classes - 1; on any device."""

    images_NCHW: Tensor
    labels_N: Tensor
    classes: int

    def __post_init__(self) -> None:
        if len(self.images_NCHW) != len(self.labels_N):
            raise DataError(f"{len(self.images_NCHW)} images but {len(self.labels_N)} labels")
        if not len(self.labels_N):
            raise DataError("the set has no images")
        low, high = int(self.labels_N.min()), int(self.labels_N.max())
        if low < 0 or high >= self.classes:
            raise DataError(f"labels run from {low} to {high}, but the model has classes 0 to {self.classes - 1}")

    def __len__(self) -> int:
        return len(self.labels_N)

    def to(self, device: torch.device) -> ImageSet:
        """Copy the set to another device."""
        return ImageSet(self.images_NCHW.to(device), self.labels_N.to(device), self.classes)


def _changed(normalise: Normalisation, augment: Augment | None) -> Transform:
    """Return the transform of a batch of bytes: numbers, augmented, normalised, channels last."""

    def transform(images_BCHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
        images_BCHW = images_BCHW.float()
        if augment is not None:
            images_BCHW = augment(images_BCHW)
        return normalise(images_BCHW).contiguous(memory_format=torch.channels_last), labels_B

    return transform


class ResidentImages(ResidentBatches):
    """Training batches from a set on the device, whose generator shuffles it."""

    def __init__(
        self,
        data: ImageSet,
        normalise: Normalisation,
        batch: int,
        ranks: Ranks,
        seed: int,
        augment: Augment | None = None,
    ) -> None:
        order, spans = Order(len(data), seed, device=ranks.device), deal(len(data), batch, ranks.rank, ranks.world)
        here, normalise = data.to(ranks.device), normalise.to(ranks.device)
        transform = _changed(normalise, augment)
        super().__init__((here.images_NCHW, here.labels_N), spans, batch, ranks, order, transform)
        self._normalise, self._augment = normalise, augment
        self._identity = Normalisation(torch.ones_like(normalise.scale), torch.zeros_like(normalise.shift))

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return images_BCHW and labels_B; one kernel instead of seven gathers them, normalised if not augmented."""
        if not runtime.usable(position.device):
            images_BCHW, labels_B = super().load(position, shape, first, count)
            return images_BCHW, labels_B
        images_NCHW, labels_N = self._data
        table = self._normalise if self._augment is None else self._identity
        channels, height, width = images_NCHW.shape[1:]
        images_BCHW = channels_last((count, channels, height, width), self._normalise.scale, torch.float32)
        labels_B = torch.empty(count, dtype=torch.long, device=position.device)
        sizes = (images_BCHW.numel(), first, self._rows_SB.shape[1], channels, height * width)
        numbers = (table.scale, table.shift, images_BCHW, labels_B, *sizes)
        blocks = cdiv(images_BCHW.numel(), runtime.THREADS)
        module("gather.cu").launch("gather", blocks, images_NCHW, labels_N, self._rows_SB, position, *numbers)
        if self._augment is not None:
            images_BCHW = self._normalise(self._augment(images_BCHW)).contiguous(memory_format=torch.channels_last)
        return images_BCHW, labels_B


def stream_images(
    data: ImageSet, normalise: Normalisation, batch: int, ranks: Ranks, seed: int, augment: Augment | None = None
) -> StreamedBatches:
    """Return the same batches as ResidentImages, in the same order, for a set larger than the device's memory."""
    order, spans = Order(len(data), seed, device=ranks.device), deal(len(data), batch, ranks.rank, ranks.world)
    transform, sample = _changed(normalise.to(ranks.device), augment), (data.images_NCHW[:1], data.labels_N[:1])
    whole = TensorDataset(data.images_NCHW, data.labels_N)
    return StreamedBatches(whole, sample, spans, batch, ranks, seed, order, transform, None, workers=0)


def training_images(
    data: ImageSet, normalise: Normalisation, batch: int, ranks: Ranks, seed: int, augment: Augment | None = None
) -> ResidentImages | StreamedBatches:
    """Keep the set on the device if it takes at most half of the free memory, else stream it; print which."""
    size = data.images_NCHW.nbytes + data.labels_N.nbytes
    resident = size <= free_bytes(ranks.device) * RESIDENT_SHARE
    if ranks.first:
        how = "kept on" if resident else "streamed to"
        print(f"data: {len(data)} images {how} {ranks.device} ({size / 2**20:,.0f} MiB)", flush=True)
    return (ResidentImages if resident else stream_images)(data, normalise, batch, ranks, seed, augment)


def flip(images_BCHW: Tensor) -> Tensor:
    """Mirror each image left to right with probability one half."""
    mirrored_B = torch.rand(len(images_BCHW), 1, 1, 1, device=images_BCHW.device) < 0.5
    return torch.where(mirrored_B, images_BCHW.flip(3), images_BCHW)


def crop(images_BCHW: Tensor, pixels: int, *, reflect: bool = True) -> Tensor:
    """Move each image by up to ``pixels`` both ways, as a random crop after padding by reflection (or with zeros)."""
    rows, _, height, width = images_BCHW.shape
    if reflect and pixels >= min(height, width):
        raise ValueError(f"a crop by {pixels} pixels cannot reflect images of {height}×{width}")
    device = images_BCHW.device
    rows_BH = torch.randint(0, 2 * pixels + 1, (rows, 1), device=device) + torch.arange(height, device=device)
    columns_BW = torch.randint(0, 2 * pixels + 1, (rows, 1), device=device) + torch.arange(width, device=device)
    if reflect:
        rows_BH, columns_BW = _reflected(rows_BH - pixels, height), _reflected(columns_BW - pixels, width)
    else:
        images_BCHW = F.pad(images_BCHW, (pixels,) * 4)
    every_B = torch.arange(rows, device=device)[:, None, None]
    return images_BCHW.permute(0, 2, 3, 1)[every_B, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)


def _reflected(places: Tensor, size: int) -> Tensor:
    """Return the places, those beyond an edge counted back from it."""
    return (size - 1) - ((size - 1) - places.abs()).abs()


def affine(
    images_BCHW: Tensor, degrees: float = 0.0, shift: float = 0.0, scale: float = 0.0, shear_degrees: float = 0.0
) -> Tensor:
    """Rotate, move, scale and shear each image by its own amounts, bilinear, zeros from outside.

    Args:
        degrees: rotation of up to this much either way.
        shift: of up to this share of height and width.
        scale: by a factor of 1 - scale to 1 + scale.
        shear_degrees: along the rows.
    """
    draws = torch.rand(5, len(images_BCHW), device=images_BCHW.device) * 2 - 1
    angle, shear = draws[0] * math.radians(degrees), torch.tan(draws[1] * math.radians(shear_degrees))
    factor = 1 + draws[2] * scale
    # grid_sample's corners are -1 and 1: a move by the whole width is 2.
    across, down = draws[3] * 2 * shift, draws[4] * 2 * shift
    cosine, sine = torch.cos(angle) / factor, torch.sin(angle) / factor
    first = torch.stack([cosine, cosine * shear - sine, across], 1)
    second = torch.stack([sine, sine * shear + cosine, down], 1)
    matrices_B23 = torch.stack([first, second], 1).to(images_BCHW.dtype)
    grid_BHW2 = F.affine_grid(matrices_B23, list(images_BCHW.shape), align_corners=False)
    return F.grid_sample(images_BCHW, grid_BHW2, align_corners=False)


class TestImages:
    """Batches of a test set, this rank's share; together the ranks see every example once."""

    __test__ = False  # pytest would collect it for its name

    def __init__(self, data: ImageSet, normalise: Normalisation, ranks: Ranks, batch: int = 1000) -> None:
        share = slice(ranks.rank, None, ranks.world)
        self._images_NCHW = data.images_NCHW[share].to(ranks.device)
        self._labels_N = data.labels_N[share].to(ranks.device)
        self._normalise, self._batch = normalise.to(ranks.device), batch

    def __len__(self) -> int:
        return len(self._labels_N)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for first in range(0, len(self._labels_N), self._batch):
            rows = slice(first, first + self._batch)
            images_BCHW = self._normalise(self._images_NCHW[rows].float())
            yield images_BCHW.contiguous(memory_format=torch.channels_last), self._labels_N[rows]
