"""Bytes of an image to a network's numbers: read from the training set, kept with the model.

Shapes: N images, B rows, C channels, H and W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalisation:
    """Bytes to numbers of mean 0 and deviation 1: ``image * scale + shift``, [C, 1, 1] each."""

    scale: Tensor
    shift: Tensor

    @classmethod
    def of(cls, images_NCHW: Tensor) -> Normalisation:
        """Read from the data, one mean and deviation a channel; exact, through a histogram of the bytes."""
        planes = images_NCHW.unbind(1)
        counts = torch.stack([torch.bincount(plane.flatten(), minlength=256) for plane in planes]).cpu().double()
        values = torch.arange(256, dtype=torch.double)
        mean = (counts * values).sum(1) / counts.sum(1)
        variance = (counts * values.square()).sum(1) / counts.sum(1) - mean.square()
        deviation = variance.clamp(min=1e-12).sqrt()
        return cls((1 / deviation).float()[:, None, None], (-mean / deviation).float()[:, None, None])

    def to(self, device: torch.device) -> Normalisation:
        """The same on another device."""
        return Normalisation(self.scale.to(device), self.shift.to(device))

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        return torch.addcmul(self.shift, images_BCHW, self.scale)
