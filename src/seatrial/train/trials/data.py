"""Training batches of all trials: the set lies on the device once, each trial has its own order of it.

Shapes: T trials, N examples, S steps of an epoch, B rows, C channels, H and W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seatrial.train.data.images import Augment, ImageSet, Normalisation, places, shuffled
from seatrial.train.data.shards import Shape, deal
from seatrial.train.errors import InputError
from seatrial.train.kernels.nvrtc import THREADS, launch, usable
from seatrial.train.memory import RESIDENT_SHARE, free_bytes
from seatrial.train.trials.losses import Batch
from seatrial.train.trials.network import TrialNetworks
from seatrial.train.trials.settings import Trial

#: Every trial's rows of a step: images as numbers times scale plus shift, and their labels.
SOURCE = """
extern "C" __global__ void gather_trials(
    const unsigned char* images, const long long* labels, const long long* rows, const long long* position,
    const float* scale, const float* shift, float* out, long long* picked, int count, int first, int steps,
    int batch) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= count * NUMBERS) return;
  int place = thread % NUMBERS, row = thread / NUMBERS, c = place / PIXELS;
  long long trial = blockIdx.y, from = rows[(trial * steps + position[0]) * batch + first + row];
  out[trial * count * NUMBERS + thread] = images[from * NUMBERS + place] * scale[c] + shift[c];
  if (place == 0) picked[trial * count + row] = labels[from];
}
"""


class TrialImages:
    """A ``step.Source``: the same steps for every trial, each with the rows of its lone run.

    Raises:
        InputError: the set and the trials' orders of it do not fit beside the models.
    """

    resident = True

    def __init__(
        self,
        data: ImageSet,
        normalise: Normalisation,
        batch: int,
        networks: TrialNetworks,
        trials: Sequence[Trial],
        device: torch.device,
        augment: Augment | None = None,
    ) -> None:
        self.spans = deal(len(data), batch)
        needed = data.size_bytes + 8 * len(trials) * len(self.spans) * batch
        if device.type == "cuda" and needed > free_bytes(device) * RESIDENT_SHARE:
            raise InputError(
                f"the data and {len(trials)} orders of it take {needed / 1e9:.1f} GB, more than half of the free "
                "memory",
                fix="fewer trials at once, or run without --fused",
            )
        self._data, self._normalise = data.to(device), normalise.to(device)
        self._as_they_are = Normalisation(
            torch.ones_like(self._normalise.scale), torch.zeros_like(self._normalise.shift)
        )
        self._networks, self._trials, self._augment = networks, trials, augment
        self.copies = len(trials)  # each example of a step is trained on by so many networks
        self._places_SB = places(self.spans, batch).to(device)
        self._rows_TSB = torch.zeros(len(trials), *self._places_SB.shape, dtype=torch.long, device=device)

    def start(self, epoch: int, first_step: int) -> None:
        """Shuffle for an epoch: each trial by its own seed."""
        for trial, rows_SB in zip(self._trials, self._rows_TSB, strict=True):
            order_N = shuffled(len(self._data), trial.seed, epoch, rows_SB.device)
            torch.index_select(order_N, 0, self._places_SB.view(-1), out=rows_SB.view(-1))

    def before_step(self) -> None:
        """Nothing to do on the host."""

    def load(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Batch, Tensor]:
        """Rows ``first`` to ``first + count`` of every trial's step ``position``: images and labels_TB."""
        if usable(position.device):
            return self._gather(position, shape, first, count)
        rows_TB = self._rows_TSB.index_select(1, position).squeeze(1)[:, first : first + count]
        images = self._data.images_NCHW.index_select(0, rows_TB.reshape(-1)).float()
        images = self._normalise(images if self._augment is None else self._augmented(images, count))
        images_TBCHW = images.view(len(self._trials), count, *images.shape[1:])
        labels_TB = self._data.labels_N.index_select(0, rows_TB.reshape(-1)).view(rows_TB.shape)
        return Batch(images_TBCHW, position, first == 0, count / shape.rows), labels_TB

    def _gather(self, position: Tensor, shape: Shape, first: int, count: int) -> tuple[Batch, Tensor]:
        """The same in one kernel; normalised where nothing augments the images before."""
        table = self._normalise if self._augment is None else self._as_they_are
        trials, (channels, height, width) = len(self._trials), self._data.images_NCHW.shape[1:]
        images = torch.empty(trials, count, channels, height, width, device=position.device)
        labels_TB = torch.empty(trials, count, dtype=torch.long, device=position.device)
        blocks = -(-count * channels * height * width // THREADS)
        tensors = (self._data.images_NCHW, self._data.labels_N, self._rows_TSB, position, table.scale, table.shift)
        numbers = (count, first, *self._rows_TSB.shape[1:])
        sizes = f"constexpr int PIXELS = {height * width}, NUMBERS = {channels} * PIXELS;"
        launch(f"{sizes}\n{SOURCE}", "gather_trials", (blocks, trials), (*tensors, images, labels_TB, *numbers))
        if self._augment is not None:
            augmented = self._augmented(images.flatten(0, 1), count)
            images = self._normalise(augmented).view_as(images)
        return Batch(images, position, first == 0, count / shape.rows), labels_TB

    def _augmented(self, images: Tensor, count: int) -> Tensor:
        assert self._augment is not None
        if images.is_cuda:
            return self._augment(images)
        parts = []
        for trial, own in enumerate(torch.split(images, count)):
            with self._networks.drawing(trial):
                parts.append(self._augment(own))
        return torch.cat(parts)
