"""GELU with the bias before it; sums over rows of gradients, in parts; and those parts summed into a layer's gradients.

Shapes: T rows (tokens), C columns, R parts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels.nvrtc import EIGHT, GELU, NUMBERS, REALS, launch, usable

#: Columns of a block: eight for each lane of a warp.
COLUMNS = 256
#: Four for each multiprocessor of a large GPU (H200: 132): all are there at once.
MOST_BLOCKS = 528
#: Sources of parts that one launch sums.
SOURCES = 4

TEXT = """
// gelu and its slope at z. In bf16 by GELU's polynomial, of |z|: 1 - tail on the one side is tail on the other.
struct Bell { float size, height, tail; };
__device__ Bell bell(float z) {
  Bell at;
  at.size = fabsf(z);
  at.height = exponential2(-0.72134752f * z * z);
  float t = reciprocal(1.0f + 0.23164189f * at.size);
  at.tail = t * (0.12741480f + t * (-0.14224837f + t * (0.71070687f + t * (-0.72657601f + t * 0.5307027f))));
  return at;
}
__device__ float activated(float z) {
  if (sizeof(Real) == 4) return 0.5f * z * (1.0f + erff(z * 0.70710678f));
  Bell at = bell(z);
  return fmaxf(z, 0.0f) - at.size * (at.tail * at.height);
}
__device__ float slope(float z) {
  if (sizeof(Real) == 4)
    return 0.5f * (1.0f + erff(z * 0.70710678f)) + 0.39894228f * z * expf(-0.5f * z * z);
  Bell at = bell(z);
  float below = (at.tail - 0.39894228f * at.size) * at.height;
  return z < 0.0f ? below : 1.0f - below;
}

// A thread keeps to eight columns; a warp takes rows, AHEAD of them read before the first is waited for.
constexpr int AHEAD = 4 / sizeof(Real);
extern "C" __global__ void __launch_bounds__(256, 4) gelu_forward(
    const Real* __restrict__ x, const float* __restrict__ bias, Real* __restrict__ y, int rows, int columns) {
  int warp = threadIdx.x / 32, column = (blockIdx.x * 32 + threadIdx.x % 32) * 8, step = gridDim.y * 8;
  if (column >= columns) return;
  Numbers plus = *(const Numbers*)(bias + column);
  for (int first = blockIdx.y * 8 + warp; first < rows; first += AHEAD * step) {
    Eight own[AHEAD];
#pragma unroll
    for (int n = 0; n < AHEAD; n++)
      if (first + n * step < rows) own[n] = *(const Eight*)(x + (long long)(first + n * step) * columns + column);
#pragma unroll
    for (int n = 0; n < AHEAD; n++) {
      if (first + n * step >= rows) break;
      Numbers z = numbers(own[n]);
      Eight result;
#pragma unroll
      for (int k = 0; k < 8; k++) result.at[k] = real(activated(z.at[k] + plus.at[k]));
      *(Eight*)(y + (long long)(first + n * step) * columns + column) = result;
    }
  }
}

// dx = dy × gelu'(x + bias). parts [gridDim.y][columns]: its sums over rows.
extern "C" __global__ void __launch_bounds__(256, 4) gelu_backward(
    const Real* dy, const Real* x, const float* bias, Real* dx, float* parts, int rows, int columns) {
  __shared__ float across[8][256];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = (blockIdx.x * 32 + lane) * 8, step = gridDim.y * 8;
  float sums[8] = {};
  if (column < columns) {
    Numbers plus = *(const Numbers*)(bias + column);
    for (int first = blockIdx.y * 8 + warp; first < rows; first += AHEAD * step) {
      Eight own[AHEAD], before[AHEAD];
#pragma unroll
      for (int n = 0; n < AHEAD; n++) {
        long long at = (long long)(first + n * step) * columns + column;
        if (first + n * step < rows) own[n] = *(const Eight*)(dy + at), before[n] = *(const Eight*)(x + at);
      }
#pragma unroll
      for (int n = 0; n < AHEAD; n++) {
        if (first + n * step >= rows) break;
        Numbers g = numbers(own[n]), z = numbers(before[n]);
        Eight result;
#pragma unroll
        for (int k = 0; k < 8; k++) {
          float value = g.at[k] * slope(z.at[k] + plus.at[k]);
          sums[k] += value;
          result.at[k] = real(value);
        }
        *(Eight*)(dx + (long long)(first + n * step) * columns + column) = result;
      }
    }
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
    return f"{REALS[dtype]}{EIGHT}{NUMBERS}{GELU}{TEXT}"


def forward(x_TC: Tensor, bias_C: Tensor) -> Tensor:
    """gelu(x + bias), by the error function; ``bias`` is fp32."""
    if not usable(x_TC.device):
        return F.gelu(x_TC.float() + bias_C).to(x_TC.dtype)
    y = torch.empty_like(x_TC)
    launch(source(x_TC.dtype), "gelu_forward", _grid(x_TC), (x_TC, bias_C, y, *x_TC.shape))
    return y


def backward(dy_TC: Tensor, x_TC: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, written over ``dy``, and parts [R, C] of that of the bias."""
    if usable(dy_TC.device):
        return dy_TC, _parts(dy_TC, x_TC, bias_C)
    z = x_TC.float() + bias_C
    slope = 0.5 * (1 + torch.erf(z * 0.5**0.5)) + z * torch.exp(-0.5 * z * z) * 0.3989422804014327
    exact = dy_TC.float() * slope
    return dy_TC.copy_(exact), exact.sum(0)[None]


def _parts(dy_TC: Tensor, x_TC: Tensor, bias_C: Tensor) -> Tensor:
    grid = _grid(dy_TC)
    parts = torch.empty(grid[1], dy_TC.shape[1], device=dy_TC.device)
    launch(source(dy_TC.dtype), "gelu_backward", grid, (dy_TC, x_TC, bias_C, dy_TC, parts, *dy_TC.shape))
    return parts


def _grid(rows_TC: Tensor) -> tuple[int, int]:
    """Groups of columns, and blocks that share their rows."""
    rows, columns = rows_TC.shape
    groups = -(-columns // COLUMNS)
    return groups, max(1, min(MOST_BLOCKS // groups, -(-rows // 8)))


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
