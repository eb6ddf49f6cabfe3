"""GELU with the bias before it; sums over rows of gradients, in parts; and those parts summed into a layer's gradients.

Shapes: T rows (tokens), C columns, R parts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, launch, usable

#: Columns of a block backwards: eight for each lane of a warp.
COLUMNS = 256
#: Parts of the sums over rows: with 12 groups of columns 384 blocks, three for each multiprocessor of an H200.
MOST_PARTS = 32
#: Sources of parts that one launch sums.
SOURCES = 4

TEXT = """
__device__ float gelu(float z) { return 0.5f * z * (1.0f + erff(z * 0.7071067811865476f)); }
__device__ float slope(float z) {
  return 0.5f * (1.0f + erff(z * 0.7071067811865476f)) + z * 0.3989422804014327f * expf(-0.5f * z * z);
}

extern "C" __global__ void gelu_forward(const Eight* x, const float* bias, Eight* y, int total, int columns) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int column = thread % (columns / 8) * 8;
  Eight own = x[thread], result;
#pragma unroll
  for (int k = 0; k < 8; k++) result.at[k] = real(gelu(number(own.at[k]) + bias[column + k]));
  y[thread] = result;
}

// dx = dy × gelu'(x + bias), or dx = dy where x is null: then nothing is written but the sums. parts [gridDim.y][columns]
extern "C" __global__ void gelu_backward(
    const Real* dy, const Real* x, const float* bias, Real* dx, float* parts, int rows, int columns) {
  __shared__ float across[8][256];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = (blockIdx.x * 32 + lane) * 8;
  float sums[8] = {}, shift[8] = {};
  if (x && column < columns)
#pragma unroll
    for (int k = 0; k < 8; k++) shift[k] = bias[column + k];
  if (column < columns)
#pragma unroll 4
    for (int row = blockIdx.y * 8 + warp; row < rows; row += gridDim.y * 8) {
      long long at = (long long)row * columns + column;
      Eight own = *(const Eight*)(dy + at), before = {};
      if (x) before = *(const Eight*)(x + at);
#pragma unroll
      for (int k = 0; k < 8; k++) {
        float value = number(own.at[k]);
        if (x) value *= slope(number(before.at[k]) + shift[k]);
        sums[k] += value;
        own.at[k] = real(value);
      }
      if (x) *(Eight*)(dx + at) = own;
    }
#pragma unroll
  for (int k = 0; k < 8; k++) across[warp][lane * 8 + k] = sums[k];
  __syncthreads();
  if ((int)(blockIdx.x * 256 + threadIdx.x) >= columns) return;
  float total = 0.0f;
  for (int other = 0; other < 8; other++) total += across[other][threadIdx.x];
  parts[(long long)blockIdx.y * columns + blockIdx.x * 256 + threadIdx.x] = total;
}

// Four matrices of parts side by side, summed over their rows; added to what is there, or written over it.
extern "C" __global__ void sum_parts(
    const float* parts0, const float* parts1, const float* parts2, const float* parts3, int rows0, int rows1, int rows2,
    int rows3, int columns0, int columns1, int columns2, int columns3, Real* sums, int add) {
  __shared__ float across[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = blockIdx.x * 32 + lane, column = at;
  const float* parts = parts0;
  int rows = rows0, columns = columns0;
  if (column >= columns) {
    column -= columns, parts = parts1, rows = rows1, columns = columns1;
    if (column >= columns) {
      column -= columns, parts = parts2, rows = rows2, columns = columns2;
      if (column >= columns) column -= columns, parts = parts3, rows = rows3, columns = columns3;
    }
  }
  float total = 0.0f;
  if (column < columns)
#pragma unroll 8
    for (int row = warp; row < rows; row += 8) total += parts[(long long)row * columns + column];
  across[warp][lane] = total;
  __syncthreads();
  if (warp || column >= columns) return;
  for (int other = 1; other < 8; other++) total += across[other][lane];
  sums[at] = real(add ? total + number(sums[at]) : total);
}
"""


def source(dtype: torch.dtype) -> str:
    """The kernels' text."""
    return REALS[dtype] + EIGHT + TEXT


def forward(x_TC: Tensor, bias_C: Tensor) -> Tensor:
    """gelu(x + bias), by the error function; ``bias`` is fp32."""
    if not usable(x_TC.device):
        return F.gelu(x_TC.float() + bias_C).to(x_TC.dtype)
    y, total = torch.empty_like(x_TC), x_TC.numel() // 8
    launch(source(x_TC.dtype), "gelu_forward", -(-total // THREADS), (x_TC, bias_C, y, total, x_TC.shape[1]))
    return y


def backward(dy_TC: Tensor, x_TC: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, written over ``dy``, and parts [R, C] of that of the bias."""
    if usable(dy_TC.device):
        return dy_TC, _parts(dy_TC, x_TC, bias_C)
    z = x_TC.float() + bias_C
    slope = 0.5 * (1 + torch.erf(z * 0.5**0.5)) + z * torch.exp(-0.5 * z * z) * 0.3989422804014327
    exact = dy_TC.float() * slope
    return dy_TC.copy_(exact), exact.sum(0)[None]


def column_parts(matrix_TC: Tensor) -> Tensor:
    """Sums over rows, [R, C] in parts."""
    return _parts(matrix_TC) if usable(matrix_TC.device) else matrix_TC.float().sum(0)[None]


def _parts(dy_TC: Tensor, x_TC: Tensor | None = None, bias_C: Tensor | None = None) -> Tensor:
    rows, columns = dy_TC.shape
    blocks = min(MOST_PARTS, -(-rows // 8))
    parts = torch.empty(blocks, columns, device=dy_TC.device)
    grid = (-(-columns // COLUMNS), blocks)
    launch(source(dy_TC.dtype), "gelu_backward", grid, (dy_TC, x_TC, bias_C, dy_TC, parts, rows, columns))
    return parts


def sum_parts(parts: list[Tensor], sums: Tensor, *, add: bool) -> None:
    """The parts' sums over rows, side by side, into ``sums``: added, or written over what is there."""
    if not usable(sums.device):
        found = torch.cat([each.sum(0) for each in parts])
        sums.copy_(found + sums.float() if add else found)
        return
    filled = [*parts, *parts[:1] * (SOURCES - len(parts))]
    columns = [each.shape[1] for each in parts] + [0] * (SOURCES - len(parts))
    given = (*filled, *(len(each) for each in filled), *columns, sums, int(add))
    launch(source(sums.dtype), "sum_parts", -(-sum(columns) // 32), given)
