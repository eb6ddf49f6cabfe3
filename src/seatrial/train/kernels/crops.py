"""Batches cut out of a set of images: mirrored or not, moved by some pixels, normalised, in one kernel.

Shapes: N images of the set, B rows of a batch, C channels, H and W pixels, h and w of what is cut out, S steps of an
epoch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import FORMATS, THREADS, channels_last, launch

#: Beyond an edge its pixels come again in reverse order without the edge itself: padding by reflection.
TEXT = """
__device__ int reflected(int at, int size) { return at < 0 ? -at : at >= size ? 2 * size - 2 - at : at; }

// A thread for each pixel that is cut out. tops, lefts: from pixels beyond the edge on; mirrored: 0 or 1.
extern "C" __global__ void crops(
    const unsigned char* images, const long long* labels, const long long* rows, const long long* position,
    const unsigned char* mirrored, const long long* tops, const long long* lefts, const float* scale,
    const float* shift, Real* out, long long* picked, int total, int first, int batch, int C, int H, int W, int h,
    int w, int pixels) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int x = thread % w, y = thread / w % h, row = thread / w / h;
  long long from = rows[position[0] * batch + first + row];
  int i = reflected(y + (int)tops[from] - pixels, H), j = reflected(x + (int)lefts[from] - pixels, W);
  if (mirrored[from]) j = W - 1 - j;
#pragma unroll 3
  for (int c = 0; c < C; c++)
    out[thread * C + c] = real(images[((from * C + c) * H + i) * W + j] * scale[c] + shift[c]);
  if (x == 0 && y == 0) picked[row] = labels[from];
}
"""


def source(dtype: torch.dtype) -> str:
    """The kernel's text for one format."""
    return FORMATS[dtype] + TEXT


def cropped(
    images_NCHW: Tensor,
    labels_N: Tensor,
    rows_SB: Tensor,
    position: Tensor,
    moves: tuple[Tensor, Tensor, Tensor],
    table: tuple[Tensor, Tensor],
    dtype: torch.dtype,
    pixels: int,
    size: tuple[int, int],
    first: int,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Rows ``first`` and on of step ``position``: images [B, C, h, w] channels last in ``dtype``, and their labels.

    Args:
        moves: of each image of the set: whether it is mirrored (bool), and how far down and right of the place
            ``pixels`` beyond its upper left corner it is cut out. table: what each channel is multiplied by, and what
            is added then. size: h, w.
    """
    channels, height, width = images_NCHW.shape[1:]
    out = channels_last((count, channels, *size), images_NCHW, dtype)
    picked = torch.empty(count, dtype=torch.long, device=labels_N.device)
    tensors = (images_NCHW, labels_N, rows_SB, position, *moves, *table, out, picked)
    total = count * size[0] * size[1]
    sizes = (total, first, rows_SB.shape[1], channels, height, width, *size, pixels)
    launch(source(dtype), "crops", -(-total // THREADS), (*tensors, *sizes))
    return out, picked
