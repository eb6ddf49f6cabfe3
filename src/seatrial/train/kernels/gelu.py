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
struct alignas(16) Numbers { float at[8]; };
// The normal distribution at z and its density: half of 1 + erf(z / sqrt 2). In bf16 erf by Abramowitz and Stegun's
// formula 7.1.26, wrong by 1.5e-7 at most, with the exponential that the density needs anyway.
__device__ void normal(float z, float* below, float* density) {
  float peak = exp2f(-0.7213475204444817f * z * z);
  *density = 0.3989422804014327f * peak;
  if (sizeof(Real) == 4) {
    *below = 0.5f * (1.0f + erff(z * 0.7071067811865476f));
    return;
  }
#ifdef ON_CPU
  float t = 1.0f / (1.0f + 0.3275911f * 0.7071067811865476f * fabsf(z));
#else
  float t = __fdividef(1.0f, 1.0f + 0.3275911f * 0.7071067811865476f * fabsf(z));
#endif
  float rest = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
  float tail = 0.5f * t * rest * peak;
  *below = z < 0.0f ? tail : 1.0f - tail;
}

extern "C" __global__ void gelu_forward(const Eight* x, const float* bias, Eight* y, int total, int columns) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int column = thread % (columns / 8) * 8;
  Eight own = x[thread], result;
  Numbers plus = *(const Numbers*)(bias + column);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    float z = number(own.at[k]) + plus.at[k], below, density;
    normal(z, &below, &density);
    result.at[k] = real(z * below);
  }
  y[thread] = result;
}

// dx = dy × gelu'(x + bias). parts [gridDim.y][columns]: its sums over rows.
extern "C" __global__ void gelu_backward(
    const Real* dy, const Real* x, const float* bias, Real* dx, float* parts, int rows, int columns) {
  __shared__ float across[8][256];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = (blockIdx.x * 32 + lane) * 8;
  float sums[8] = {};
  if (column < columns) {
    Numbers plus = *(const Numbers*)(bias + column);
#pragma unroll 4
    for (int row = blockIdx.y * 8 + warp; row < rows; row += gridDim.y * 8) {
      long long at = (long long)row * columns + column;
      Eight own = *(const Eight*)(dy + at), before = *(const Eight*)(x + at);
#pragma unroll
      for (int k = 0; k < 8; k++) {
        float z = number(before.at[k]) + plus.at[k], below, density;
        normal(z, &below, &density);
        float value = number(own.at[k]) * (below + z * density);
        sums[k] += value;
        own.at[k] = real(value);
      }
      *(Eight*)(dx + at) = own;
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


def _parts(dy_TC: Tensor, x_TC: Tensor, bias_C: Tensor) -> Tensor:
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
