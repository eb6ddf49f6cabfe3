"""Augmentation of whole batches on the device, drawn from torch's default generator: seed it differently on each rank.

Shapes: B rows, C channels, H and W pixels. Every function keeps the shape and can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels.nvrtc import THREADS, launch, usable

#: ``affine`` as one kernel; torch's own takes thirty. A thread for each pixel of the result.
SOURCE = """
extern "C" __global__ void affine(
    const float* images, const float* draws, float* out, int B, int C, int H, int W, double degrees, double shift,
    double scale, double shear_degrees) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= B * H * W) return;
  int x = thread % W, y = thread / W % H, image = thread / W / H;
  float drawn[5];
  for (int i = 0; i < 5; i++) drawn[i] = draws[i * B + image] * 2.0f - 1.0f;
  const float radians = 0.017453292519943295f;
  float angle = drawn[0] * (float)degrees * radians, shear = tanf(drawn[1] * (float)shear_degrees * radians);
  float factor = 1.0f + drawn[2] * (float)scale, cosine = cosf(angle) / factor, sine = sinf(angle) / factor;
  float u = (2 * x + 1.0f) / W - 1.0f, v = (2 * y + 1.0f) / H - 1.0f;
  float across = cosine * u + (cosine * shear - sine) * v + drawn[3] * 2.0f * (float)shift;
  float down = sine * u + (sine * shear + cosine) * v + drawn[4] * 2.0f * (float)shift;
  float column = ((across + 1.0f) * W - 1.0f) / 2.0f, row = ((down + 1.0f) * H - 1.0f) / 2.0f;
  int left = (int)floorf(column), top = (int)floorf(row);
  for (int c = 0; c < C; c++) {
    const float* plane = images + (image * C + c) * H * W;
    float sum = 0.0f;
    for (int k = 0; k < 4; k++) {
      int i = top + k / 2, j = left + k % 2;
      float weight = (1.0f - fabsf(row - i)) * (1.0f - fabsf(column - j));
      if (i >= 0 && i < H && j >= 0 && j < W) sum += weight * plane[i * W + j];
    }
    out[(image * C + c) * H * W + y * W + x] = sum;
  }
}
"""


def flip(images_BCHW: Tensor) -> Tensor:
    """Mirror each image left to right with probability one half."""
    mirrored_B = torch.rand(len(images_BCHW), 1, 1, 1, device=images_BCHW.device) < 0.5
    return torch.where(mirrored_B, images_BCHW.flip(3), images_BCHW)


def crop(images_BCHW: Tensor, pixels: int, *, reflect: bool = True) -> Tensor:
    """Move each image by up to ``pixels`` both ways, as a random crop after padding by reflection (or with zeros)."""
    rows, _, height, width = images_BCHW.shape
    padded = F.pad(images_BCHW, (pixels,) * 4, mode="reflect" if reflect else "constant")
    device = images_BCHW.device
    top_B = torch.randint(0, 2 * pixels + 1, (rows, 1), device=device)
    left_B = torch.randint(0, 2 * pixels + 1, (rows, 1), device=device)
    rows_BH = top_B + torch.arange(height, device=device)
    columns_BW = left_B + torch.arange(width, device=device)
    every_B = torch.arange(rows, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[every_B, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)


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
    rows, device = len(images_BCHW), images_BCHW.device
    draws = torch.rand(5, rows, device=device)
    if usable(device) and images_BCHW.dtype == torch.float32:
        return _affine(images_BCHW.contiguous(), draws, degrees, shift, scale, shear_degrees)
    draws = draws * 2 - 1
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


def _affine(images_BCHW: Tensor, draws: Tensor, *most: float) -> Tensor:
    out, (rows, _, height, width) = torch.empty_like(images_BCHW), images_BCHW.shape
    numbers = (*images_BCHW.shape, *map(float, most))
    launch(SOURCE, "affine", -(-rows * height * width // THREADS), (images_BCHW, draws, out, *numbers))
    return out
