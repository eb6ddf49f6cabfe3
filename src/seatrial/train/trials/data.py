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
from seatrial.train.memory import RESIDENT_SHARE, free_bytes
from seatrial.train.trials.losses import Batch
from seatrial.train.trials.network import TrialNetworks
from seatrial.train.trials.settings import Trial


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
        rows_TB = self._rows_TSB.index_select(1, position).squeeze(1)[:, first : first + count]
        images = self._data.images_NCHW.index_select(0, rows_TB.reshape(-1)).float()
        images = self._normalise(images if self._augment is None else self._augmented(images, count))
        images_TBCHW = images.view(len(self._trials), count, *images.shape[1:])
        labels_TB = self._data.labels_N.index_select(0, rows_TB.reshape(-1)).view(rows_TB.shape)
        return Batch(images_TBCHW, position, first == 0, count / shape.rows), labels_TB

    def _augmented(self, images: Tensor, count: int) -> Tensor:
        assert self._augment is not None
        if images.is_cuda:
            return self._augment(images)
        parts = []
        for trial, own in enumerate(images.split(count)):
            with self._networks.drawing(trial):
                parts.append(self._augment(own))
        return torch.cat(parts)
