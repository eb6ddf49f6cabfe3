"""Augmentation of whole batches on the device, drawn from torch's default generator: seed it differently on each rank.

Shapes: B rows, C channels, H and W pixels. Every function keeps the shape and can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


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
