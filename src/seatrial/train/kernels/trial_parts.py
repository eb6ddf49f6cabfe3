"""Sums of the partial gradients that a trial's blocks leave, always in the same order.

Shapes: T trials, R blocks of each, M and N elements of the two gradients that lie side by side in a block's part.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import THREADS, launch

#: Blocks that fill a large GPU at two a multiprocessor (H200: 132).
MOST_BLOCKS = 264

SOURCE = """
extern "C" __global__ void sum_parts(const float* parts, float* first, float* second, int rows, int M, int N) {
  int column = blockIdx.x * blockDim.x + threadIdx.x, width = M + N;
  if (column >= width) return;
  parts += (long long)blockIdx.y * rows * width + column;
  float total = 0.0f;
#pragma unroll 4
  for (int row = 0; row < rows; row++) total += parts[(long long)row * width];
  if (column < M)
    first[(long long)blockIdx.y * M + column] = total;
  else
    second[(long long)blockIdx.y * N + column - M] = total;
}
"""


def sum_parts(parts_TRW: Tensor, elements: int) -> tuple[Tensor, Tensor]:
    """[T, M] and [T, N] of [T, R, M + N], where M is ``elements``."""
    trials, rows, width = parts_TRW.shape
    first = torch.empty(trials, elements, device=parts_TRW.device)
    second = torch.empty(trials, width - elements, device=parts_TRW.device)
    numbers = (rows, elements, width - elements)
    launch(SOURCE, "sum_parts", (-(-width // THREADS), trials), (parts_TRW, first, second, *numbers))
    return first, second


def blocks_for(trials: int, pieces: int, most: int = MOST_BLOCKS) -> int:
    """Blocks of each trial that share out its pieces of work."""
    return max(1, min(pieces, most // trials))
