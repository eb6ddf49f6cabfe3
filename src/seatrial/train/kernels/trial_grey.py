"""The first layers of several trials at once: convolution of one channel, bias, ReLU and 2×2 max-pool in one kernel.

The convolution's output, 43 kB an image in bf16, is never written: for 64 trials of 64 images that would be 180 MB
each time it is passed. A pool has one gradient for four pixels, so the filters' gradient is a quarter of the work.
Shapes: T trials, B images of each, H and W pixels, C filters of K×K, padded by P; PH and PW of the pooled output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import REALS, launch
from seatrial.train.kernels.trial_parts import blocks_for, sum_parts

#: Blocks for these kernels, which are small: eight a multiprocessor of an H200 (132).
MOST_BLOCKS = 1056

SOURCE = """
constexpr int SH = H + 2 * P, SW = W + 2 * P, PH = (SH - K + 1) / 2, PW = (SW - K + 1) / 2, PLACES = PH * PW;
struct alignas(8) Four { Real at[4]; };
struct alignas(4) Marks { signed char at[4]; };

__device__ void load_image(float* image, const float* from) {
  __syncthreads();
  for (int i = threadIdx.x; i < SH * SW; i += blockDim.x) {
    int y = i / SW - P, x = i % SW - P;
    image[i] = y >= 0 && y < H && x >= 0 && x < W ? from[y * W + x] : 0.0f;
  }
  __syncthreads();
}

// A thread has four filters in its registers and takes places in turns. which: 0 to 3 in reading order, or 4: none
// was above 0. common: all trials see the same images.
extern "C" __global__ void __launch_bounds__(256, 2) grey_pool(
    const float* images, const float* filters, const float* bias, Four* out, Marks* which, int B, int common) {
  __shared__ float image[SH * SW];
  constexpr int GROUPS = C / 4;
  int group = threadIdx.x % GROUPS, lanes = blockDim.x / GROUPS;
  long long trial = blockIdx.y;
  float taps[K * K][4], plus[4];
#pragma unroll
  for (int c = 0; c < 4; c++) {
    plus[c] = bias[trial * C + group * 4 + c];
#pragma unroll
    for (int tap = 0; tap < K * K; tap++) taps[tap][c] = filters[(trial * C + group * 4 + c) * K * K + tap];
  }
  for (int n = blockIdx.x; n < B; n += gridDim.x) {
    load_image(image, images + ((common ? 0 : trial * B) + n) * H * W);
    for (int place = threadIdx.x / GROUPS; place < PLACES; place += lanes) {
      const float* corner = image + place / PW * 2 * SW + place % PW * 2;
      float window[K + 1][K + 1], sums[4][4] = {};
#pragma unroll
      for (int i = 0; i <= K; i++)
#pragma unroll
        for (int j = 0; j <= K; j++) window[i][j] = corner[i * SW + j];
#pragma unroll
      for (int i = 0; i < K; i++)
#pragma unroll
        for (int j = 0; j < K; j++)
#pragma unroll
          for (int k = 0; k < 4; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) sums[k][c] += taps[i * K + j][c] * window[i + k / 2][j + k % 2];
      Four best;
      Marks marks;
#pragma unroll
      for (int c = 0; c < 4; c++) {
        float largest = 0.0f;
        signed char mark = 4;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          float value = sums[k][c] + plus[c];
          if (!(value <= largest)) {  // a NaN goes on
            largest = value;
            mark = k;
          }
        }
        best.at[c] = real(largest);
        marks.at[c] = mark;
      }
      long long at = ((trial * B + n) * PLACES + place) * GROUPS + group;
      out[at] = best;
      which[at] = marks;
    }
  }
}

// Lanes are filters, warps take places in turns. parts [T][gridDim.x][C * K * K + C]: of filters and bias.
extern "C" __global__ void __launch_bounds__(256, 4) grey_back(
    const float* images, const Real* grad, const signed char* which, float* parts, int B) {
  constexpr int AHEAD = 4;
  __shared__ float image[SH * SW], across[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  long long trial = blockIdx.y;
  parts += (trial * gridDim.x + blockIdx.x) * (C * K * K + C);
  for (int filter = lane; filter < C; filter += 32) {
    float sums[K * K + 1] = {};
    for (int n = blockIdx.x; n < B; n += gridDim.x) {
      load_image(image, images + (trial * B + n) * H * W);
      for (int first = warp; first < PLACES; first += 8 * AHEAD) {
        int chosen[AHEAD];
        float gradients[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
          int place = first + 8 * a;
          long long at = ((trial * B + n) * PLACES + (place < PLACES ? place : 0)) * C + filter;
          chosen[a] = place < PLACES ? which[at] : 4;
          gradients[a] = number(grad[at]);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
          int place = first + 8 * a, k = chosen[a] & 3;
          if (place >= PLACES) break;
          float gradient = chosen[a] == 4 ? 0.0f : gradients[a];
          const float* from = image + (place / PW * 2 + k / 2) * SW + place % PW * 2 + k % 2;
#pragma unroll
          for (int i = 0; i < K; i++)
#pragma unroll
            for (int j = 0; j < K; j++) sums[i * K + j] += gradient * from[i * SW + j];
          sums[K * K] += gradient;
        }
      }
    }
#pragma unroll
    for (int tap = 0; tap <= K * K; tap++) {
      __syncthreads();
      across[warp][lane] = sums[tap];
      __syncthreads();
      if (warp == 0) {
        float total = 0.0f;
        for (int other = 0; other < 8; other++) total += across[other][lane];
        parts[tap < K * K ? filter * K * K + tap : C * K * K + filter] = total;
      }
    }
  }
}
"""


def source(dtype: torch.dtype, filters: int, size: int, padding: int, height: int, width: int) -> str:
    """The kernels' text for one layer."""
    numbers = f"constexpr int C = {filters}, K = {size}, P = {padding}, H = {height}, W = {width};\n"
    return f"{REALS[dtype]}{numbers}{SOURCE}"


def grey_pool(
    images: Tensor, weight: Tensor, bias: Tensor, padding: int, dtype: torch.dtype, *, common: bool = False
) -> tuple[Tensor, Tensor]:
    """([T, B, PH, PW, C] in ``dtype``, which of each four it was) of images [T, B, 1, H, W], or [B, 1, H, W] if common.

    Args:
        weight: [T, C, 1, K, K]. bias: [T, C].
    """
    rows, _, height, width = images.shape[-4:]
    trials, filters, _, size, _ = weight.shape
    pooled = tuple((pixels + 2 * padding - size + 1) // 2 for pixels in (height, width))
    out = torch.empty(trials, rows, *pooled, filters, dtype=dtype, device=images.device)
    which = torch.empty(out.shape, dtype=torch.int8, device=images.device)
    text = source(dtype, filters, size, padding, height, width)
    grid = (blocks_for(trials, rows, MOST_BLOCKS), trials)
    launch(text, "grey_pool", grid, (images, weight, bias, out, which, rows, int(common)))
    return out, which


class GreyPool(torch.autograd.Function):
    """images [T, B, 1, H, W] (fp32), weight [T, C, 1, K, K], bias [T, C] → [T, B, PH, PW, C] in ``dtype``."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, padding: int, dtype: torch.dtype) -> Tensor:
        out, which = grey_pool(images, weight, bias, padding, dtype)
        ctx.save_for_backward(images, which)
        ctx.weight, ctx.padding = weight, padding
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, which = ctx.saved_tensors
        trials, rows, _, height, width = images.shape
        filters, size = ctx.weight.shape[1], ctx.weight.shape[3]
        grad, blocks = grads[0].contiguous(), blocks_for(trials, rows, MOST_BLOCKS)
        parts = torch.empty(trials, blocks, filters * (size * size + 1), device=images.device)
        text = source(grad.dtype, filters, size, ctx.padding, height, width)
        launch(text, "grey_back", (blocks, trials), (images, grad, which, parts, rows))
        of_weight, of_bias = sum_parts(parts, filters * size * size)
        return None, of_weight.as_strided(ctx.weight.shape, ctx.weight.stride()), of_bias, None, None
