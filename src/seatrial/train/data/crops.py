"""Mirrored and moved images of a set that lies on the device: which are mirrored alternates from epoch to epoch.

Source of alternating: K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv:2404.00498.
Shapes: N images of the set, B rows of a batch, C channels, H and W pixels, S steps of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.data.images import ImageSet
from seatrial.train.data.order import Shape, Source, Span, deal, places, shuffled
from seatrial.train.distributed import Ranks
from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import FORMATS, cdiv, channels_last, module
from seatrial.train.saving.examples import Normalisation


class AlternatingCrops(Source):
    """Batches of images that are mirrored and cut out after padding by reflection, as they are read.

    Which images are mirrored is drawn once and alternates: every pair of epochs sees each image both ways.

    Args:
        pixels: an image moves by up to so many both ways. dtype: of the batches.
        sides: pixels of the square that is cut out of the padded image, in each of the first epochs; whole images
            follow. A smaller square takes less time.

    Raises:
        ValueError: a side that is larger than the images, or no larger than ``pixels``.
    """

    #: Steps in one graph. A step takes milliseconds and a launch microseconds: more would only be captured longer.
    steps_per_replay = 4

    def __init__(
        self,
        data: ImageSet,
        normalise: Normalisation,
        batch: int,
        ranks: Ranks,
        seed: int,
        *,
        pixels: int = 2,
        dtype: torch.dtype = torch.float32,
        sides: Sequence[int] = (),
    ) -> None:
        whole = max(data.images_NCHW.shape[2:])
        if sides and not pixels < min(sides) <= max(sides) <= whole:
            raise ValueError(f"sides are {pixels + 1} to {whole} pixels long, not {min(sides)} to {max(sides)}")
        dealt = deal(len(data), batch, ranks.rank, ranks.world, drop_last=True)
        self._sides, self._whole = tuple(sides), whole
        self._spans_of = {
            side: [span._replace(shape=span.shape._replace(length=side)) for span in dealt] for side in {whole, *sides}
        }
        self.spans = self._spans_of[whole]
        self._data, self._normalise = data.to(ranks.device), normalise.to(ranks.device)
        self._pixels, self._dtype, self._device = pixels, dtype, ranks.device
        self._places_SB = places(self.spans, batch).to(ranks.device)
        self._rows_SB = torch.zeros_like(self._places_SB)
        self._tops_N, self._lefts_N = (torch.zeros(len(data), dtype=torch.long, device=ranks.device) for _ in range(2))
        self._mirrored_N = torch.zeros(len(data), dtype=torch.bool, device=ranks.device)
        self._first_N = torch.zeros_like(self._mirrored_N)
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Draw anew which images are mirrored first; later draws follow this seed, too."""
        self._seed = seed
        generator = torch.Generator(self._device).manual_seed(seed)
        self._first_N.copy_(torch.rand(len(self._first_N), device=self._device, generator=generator) < 0.5)

    def spans_in(self, epoch: int) -> list[Span]:
        """Return this rank's steps of an epoch; ``length`` is the side of the crop."""
        return self._spans_of[self._sides[epoch - 1] if epoch <= len(self._sides) else self._whole]

    def start(self, epoch: int, first_step: int) -> None:
        """Mirror, move and shuffle. The same whenever this epoch is started: drawn from seed and epoch."""
        self.spans = self.spans_in(epoch)
        torch.logical_xor(self._first_N, torch.full_like(self._first_N, epoch % 2 == 0), out=self._mirrored_N)
        generator = torch.Generator(self._device).manual_seed(self._seed * 1_000_003 + epoch)
        for moves_N, size in zip((self._tops_N, self._lefts_N), self._data.images_NCHW.shape[2:], strict=True):
            moves_N.random_(0, max(0, size - self.spans[0].shape.length) + 2 * self._pixels + 1, generator=generator)
        order_N = shuffled(len(self._first_N), self._seed, epoch, self._device)
        self._rows_SB.copy_(order_N[self._places_SB])

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return rows ``first`` to ``first + count`` of step ``position``: images_BCHW channels last, labels_B."""
        if not runtime.usable(self._device) or self._dtype not in FORMATS:
            rows_B = self._rows_SB.index_select(0, position).view(-1)[first : first + count]
            return self.images(rows_B, shape.length), self._data.labels_N[rows_B]
        images_NCHW, size = self._data.images_NCHW, self._size(shape.length)
        images_BCHW = channels_last((count, images_NCHW.shape[1], *size), images_NCHW, self._dtype)
        labels_B = torch.empty(count, dtype=torch.long, device=self._device)
        moves, table = (self._mirrored_N, self._tops_N, self._lefts_N), (self._normalise.scale, self._normalise.shift)
        tensors = (images_NCHW, self._data.labels_N, self._rows_SB, position, *moves, *table, images_BCHW, labels_B)
        total = count * size[0] * size[1]
        sizes = (total, first, self._rows_SB.shape[1], *images_NCHW.shape[1:], *size, self._pixels)
        module("crops.cu", self._dtype).launch("crops", cdiv(total, runtime.THREADS), *tensors, *sizes)
        return images_BCHW, labels_B

    def images(self, rows_B: Tensor, side: int) -> Tensor:
        """Return some images as this epoch shows them, [B, C, h, w]."""
        images_BCHW, mirrored_B = self._data.images_NCHW[rows_B].float(), self._mirrored_N[rows_B]
        images_BCHW = torch.where(mirrored_B[:, None, None, None], images_BCHW.flip(3), images_BCHW)
        (height, width), pixels = self._size(side), self._pixels
        padded_BHWC = F.pad(images_BCHW, (pixels,) * 4, mode="reflect").permute(0, 2, 3, 1)
        rows_BH = self._tops_N[rows_B][:, None] + torch.arange(height, device=self._device)
        columns_BW = self._lefts_N[rows_B][:, None] + torch.arange(width, device=self._device)
        # Whole images are tried out before their epoch, with the moves of an epoch of smaller squares.
        rows_BH.clamp_(max=padded_BHWC.shape[1] - 1)
        columns_BW.clamp_(max=padded_BHWC.shape[2] - 1)
        every_B = torch.arange(len(rows_B), device=self._device)[:, None, None]
        cut_BCHW = padded_BHWC[every_B, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)
        return self._normalise(cut_BCHW).to(self._dtype).contiguous(memory_format=torch.channels_last)

    def _size(self, side: int) -> tuple[int, int]:
        """Return height and width of the crop."""
        height, width = self._data.images_NCHW.shape[2:]
        return min(side, height), min(side, width)
