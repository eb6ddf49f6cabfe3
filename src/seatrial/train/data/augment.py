"""Augmentation of whole batches on the device, drawn from torch's default generator: seed it differently on each rank.

Shapes: B rows, C channels, H and W pixels. Every function keeps the shape and can be captured in a CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels.nvrtc import THREADS, channels_last, launch, usable

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

#: ``flip`` and ``crop`` as one kernel each, behind what is drawn. A thread for each pixel; Item: a byte or a float.
MOVES = """
// LAST: channels come last in memory.
extern "C" __global__ void flip(const Item* images, const float* draws, Item* out, int B, int C, int H, int W) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= B * H * W) return;
  int x = thread % W, image = thread / W / H, area = H * W, place = thread - image * area;
  int from = draws[image] < 0.5f ? place - x + W - 1 - x : place;
  for (int c = 0; c < C; c++) {
    long long across = LAST ? c : (long long)c * area, by = LAST ? C : 1, first = (long long)image * C * area + across;
    out[first + place * by] = images[first + from * by];
  }
}

// Zeros from outside, or REFLECTed; channels come last in the result.
extern "C" __global__ void crop(
    const Item* images, const long long* tops, const long long* lefts, Item* out, int B, int C, int H, int W,
    int pixels) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= B * H * W) return;
  int x = thread % W, y = thread / W % H, image = thread / W / H;
  int row = y + (int)tops[image] - pixels, column = x + (int)lefts[image] - pixels;
  if (REFLECT) {
    row = row < 0 ? -row : row >= H ? 2 * H - 2 - row : row;
    column = column < 0 ? -column : column >= W ? 2 * W - 2 - column : column;
  }
  bool inside = row >= 0 && row < H && column >= 0 && column < W;
  for (int c = 0; c < C; c++) {
    long long from = LAST ? (((long long)image * H + row) * W + column) * C + c
                          : (((long long)image * C + c) * H + row) * W + column;
    out[(long long)thread * C + c] = inside ? images[from] : (Item)0;
  }
}
"""
ITEMS = {torch.float32: "float", torch.uint8: "unsigned char"}


def flip(images_BCHW: Tensor) -> Tensor:
    """Mirror each image left to right with probability one half."""
    draws_B = torch.rand(len(images_BCHW), 1, 1, 1, device=images_BCHW.device)
    if _moves(images_BCHW):
        images, last = _dense(images_BCHW)
        out, (rows, _, height, width) = torch.empty_like(images), images.shape
        launch(_text(images, last), "flip", -(-rows * height * width // THREADS), (images, draws_B, out, *images.shape))
        return out
    mirrored_B = draws_B < 0.5
    return torch.where(mirrored_B, images_BCHW.flip(3), images_BCHW)


def crop(images_BCHW: Tensor, pixels: int, *, reflect: bool = True) -> Tensor:
    """Move each image by up to ``pixels`` both ways, as a random crop after padding by reflection (or with zeros)."""
    rows, _, height, width = images_BCHW.shape
    device = images_BCHW.device
    top_B = torch.randint(0, 2 * pixels + 1, (rows, 1), device=device)
    left_B = torch.randint(0, 2 * pixels + 1, (rows, 1), device=device)
    if _moves(images_BCHW) and not (reflect and pixels >= min(height, width)):
        images, last = _dense(images_BCHW)
        out, text = channels_last(tuple(images.shape), images, images.dtype), _text(images, last, reflect)
        numbers = (*images.shape, pixels)
        launch(text, "crop", -(-rows * height * width // THREADS), (images, top_B, left_B, out, *numbers))
        return out
    padded = F.pad(images_BCHW, (pixels,) * 4, mode="reflect" if reflect else "constant")
    rows_BH = top_B + torch.arange(height, device=device)
    columns_BW = left_B + torch.arange(width, device=device)
    every_B = torch.arange(rows, device=device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[every_B, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)


def _moves(images_BCHW: Tensor) -> bool:
    """Return True if the kernels of MOVES can run, and no gradient of the images is needed."""
    plain = images_BCHW.dtype in ITEMS and images_BCHW.numel() < 2**31 and not images_BCHW.requires_grad
    return plain and usable(images_BCHW.device)


def _dense(images_BCHW: Tensor) -> tuple[Tensor, bool]:
    """The images without gaps in memory, and whether channels come last there."""
    last = images_BCHW.is_contiguous(memory_format=torch.channels_last) and not images_BCHW.is_contiguous()
    return (images_BCHW if last else images_BCHW.contiguous()), last


def _text(images_BCHW: Tensor, last: bool, reflect: bool = False) -> str:
    flags = f"constexpr bool LAST = {str(last).lower()}, REFLECT = {str(reflect).lower()};\n"
    return f"typedef {ITEMS[images_BCHW.dtype]} Item;\n{flags}{MOVES}"


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
