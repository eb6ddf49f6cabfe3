"""The first layers of several trials at once: convolution of one channel, bias, ReLU and 2×2 max-pool in one kernel.

The convolution's output, 43 kB an image in bf16, is never written: for 64 trials of 64 images that would be 180 MB
each time it is passed. Forward it runs on Tensor Cores, in parts of bf16 that together are as good as fp32. A pool has
one gradient for four pixels, so the filters' gradient is a quarter of the work.
Shapes: T trials, B images of each, H and W pixels, C filters of K×K, padded by P; PH and PW of the pooled output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import REALS, launch
from seatrial.train.kernels.tensor_cores import TENSOR_CORES
from seatrial.train.kernels.trial_parts import blocks_for, sum_parts

#: Blocks that fill a large GPU (H200: 132 multiprocessors): three of the one kernel each, four of the other.
POOL_BLOCKS, BACK_BLOCKS = 396, 528

SOURCE = """
constexpr int SH = H + 2 * P, SW = W + 2 * P, PH = (SH - K + 1) / 2, PW = (SW - K + 1) / 2, PLACES = PH * PW;
#ifndef ON_CPU
// Bytes into shared memory while the thread goes on; zeros where nothing is there. copied: all of this thread's are.
template <int BYTES> __device__ void copy(void* to, const void* from, bool there) {
  unsigned address = (unsigned)__cvta_generic_to_shared(to), bytes = there ? BYTES : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               : : "r"(address), "l"(from), "n"(BYTES), "r"(bytes) : "memory");
}
__device__ void copied() { asm volatile("cp.async.wait_all;" : : : "memory"); }
#else
template <int BYTES> static void copy(void* to, const void* from, bool there) {
  if (there) memcpy(to, from, BYTES); else memset(to, 0, BYTES);
}
static void copied() {}
#endif
"""
POOL = """
constexpr int TAPS = K * K, STEPS = (3 * TAPS + 15) / 16, PIXELS = SH * SW, MINE = (PIXELS + 255) / 256;

// Products of bf16 as good as fp32's: each number is a large and a small part, and of the four products three count.
// Factor k of such a sum: image's and filter's large parts, then small × large, then large × small.
__device__ Real part(float x, bool small) { return small ? real(x - number(real(x))) : real(x); }

// A warp takes eight places and 32 filters: its rows are the four pixels of each, two in each of two products.
// which: 0 to 3 in reading order, or 4: none was above 0. common: all trials see the same images.
extern "C" __global__ void __launch_bounds__(256, 3) grey_pool(
    const float* images, const float* filters, const float* bias, Real* out, signed char* which, int B, int common) {
  __shared__ Real parts[2][2 * PIXELS];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = blockIdx.z * 32 + lane % 4 * 2;
  long long trial = blockIdx.y;
  unsigned b[STEPS][4][2];
  int offsets[STEPS][4];
#pragma unroll
  for (int s = 0; s < STEPS; s++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int k = s * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2, tap = k % TAPS;
      offsets[s][j] = k < 3 * TAPS ? (k / TAPS == 1 ? PIXELS : 0) + tap / K * SW + tap % K : 0;
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float* own = filters + (trial * C + blockIdx.z * 32 + q * 8 + lane / 4) * TAPS;
        unsigned bits = k < 3 * TAPS ? part(own[tap], k / TAPS == 2) : 0;
        b[s][q][j / 2] = j % 2 ? b[s][q][j / 2] | bits << 16 : bits;
      }
    }
  images += (common ? 0 : trial * B) * H * W;
  float ahead[MINE];
  auto take = [&](int n) {
#pragma unroll
    for (int e = 0; e < MINE; e++) {
      int i = threadIdx.x + e * 256, y = i / SW - P, x = i % SW - P;
      bool inside = i < PIXELS && y >= 0 && y < H && x >= 0 && x < W;
      ahead[e] = inside ? images[(long long)n * H * W + y * W + x] : 0.0f;
    }
  };
  take(blockIdx.x);
  Real *image = parts[0], *other = parts[1];
  for (int n = blockIdx.x; n < B; n += gridDim.x) {
#pragma unroll
    for (int e = 0; e < MINE; e++) {
      int i = threadIdx.x + e * 256;
      if (i < PIXELS) image[i] = part(ahead[e], false), image[PIXELS + i] = part(ahead[e], true);
    }
    __syncthreads();
    if (n + gridDim.x < B) take(n + gridDim.x);
    for (int first = warp * 8; first < PLACES; first += 64) {
      int place = first + lane / 4 < PLACES ? first + lane / 4 : 0;
      const Real* corner = image + place / PW * 2 * SW + place % PW * 2;
      float sums[2][4][4] = {};
#pragma unroll
      for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int u = 0; u < 2; u++) {
          unsigned a[4];
#pragma unroll
          for (int r = 0; r < 4; r++) {
            const Real* from = corner + u * SW + r % 2;
            a[r] = from[offsets[s][r / 2 * 2]] | (unsigned)from[offsets[s][r / 2 * 2 + 1]] << 16;
          }
#pragma unroll
          for (int q = 0; q < 4; q++) multiply(sums[u][q], a, b[s][q]);
        }
      if (first + lane / 4 >= PLACES) continue;
      long long at = ((trial * B + n) * PLACES + place) * C + c;
#pragma unroll
      for (int q = 0; q < 4; q++) {
        unsigned both = 0, marks = 0;
#pragma unroll
        for (int side = 0; side < 2; side++) {
          float largest = 0.0f, plus = bias[trial * C + c + q * 8 + side];
          unsigned mark = 4;
#pragma unroll
          for (int k = 0; k < 4; k++) {
            float value = sums[k / 2][q][k % 2 * 2 + side] + plus;
            if (!(value <= largest)) {  // a NaN goes on
              largest = value;
              mark = k;
            }
          }
          both |= (unsigned)real(largest) << 16 * side;
          marks |= mark << 8 * side;
        }
        *(unsigned*)(out + at + q * 8) = both;
        *(unsigned short*)(which + at + q * 8) = (unsigned short)marks;
      }
    }
    Real* before = image;
    image = other;
    other = before;
  }
}
"""
BACK = """
constexpr int NUMBERS = PLACES * C, BUFFER = (4 * SH * SW + 3 * NUMBERS + 15) / 16 * 4;  // of an image; in floats

// Lanes are filters, warps take places in turns. parts [T][gridDim.x][C * K * K + C]: of filters and bias. An image
// with its gradients comes into shared memory while the one before is summed.
extern "C" __global__ void __launch_bounds__(256, 4) grey_back(
    const float* images, const Real* grad, const signed char* which, float* parts, int B) {
  extern __shared__ float shared[];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  long long trial = blockIdx.y;
  float *now = shared, *later = shared + BUFFER;
  parts += (trial * gridDim.x + blockIdx.x) * (C * K * K + C);
  auto begin_image = [&](int n, float* buffer) {
    const float* image = images + (trial * B + n) * H * W;
    long long flat = (trial * B + n) * NUMBERS;
    char* gradients = (char*)buffer;
    for (int i = threadIdx.x; i < NUMBERS / 8; i += 256) copy<16>(gradients + i * 16, grad + flat + i * 8, true);
    char* marks = gradients + 2 * NUMBERS;
    for (int i = threadIdx.x; i < NUMBERS / 16; i += 256) copy<16>(marks + i * 16, which + flat + i * 16, true);
    float* pixels = (float*)(marks + NUMBERS);
    for (int i = threadIdx.x; i < SH * SW; i += 256) {
      int y = i / SW - P, x = i % SW - P;
      bool inside = y >= 0 && y < H && x >= 0 && x < W;
      copy<4>(pixels + i, image + (inside ? y * W + x : 0), inside);
    }
  };
  for (int filter = lane; filter < C; filter += 32) {
    float sums[K * K + 1] = {};
    __syncthreads();
    begin_image(blockIdx.x, now);
    for (int n = blockIdx.x; n < B; n += gridDim.x) {
      copied();
      __syncthreads();
      if (n + gridDim.x < B) begin_image(n + gridDim.x, later);
      const Real* gradients = (const Real*)now;
      const signed char* marks = (const signed char*)(gradients + NUMBERS);
      const float* image = (const float*)(marks + NUMBERS);
#pragma unroll 3
      for (int place = warp; place < PLACES; place += 8) {
        int mark = marks[place * C + filter], k = mark & 3;
        float gradient = mark == 4 ? 0.0f : number(gradients[place * C + filter]);
        const float* from = image + (place / PW * 2 + k / 2) * SW + place % PW * 2 + k % 2;
#pragma unroll
        for (int i = 0; i < K; i++)
#pragma unroll
          for (int j = 0; j < K; j++) sums[i * K + j] += gradient * from[i * SW + j];
        sums[K * K] += gradient;
      }
      float* before = now;
      now = later;
      later = before;
    }
#pragma unroll
    for (int tap = 0; tap <= K * K; tap++) {
      __syncthreads();
      shared[warp * 32 + lane] = sums[tap];
      __syncthreads();
      if (warp == 0) {
        float total = 0.0f;
        for (int other = 0; other < 8; other++) total += shared[other * 32 + lane];
        parts[tap < K * K ? filter * K * K + tap : C * K * K + filter] = total;
      }
    }
  }
}
"""


def source(part: str, filters: int, size: int, padding: int, height: int, width: int) -> str:
    """The text of POOL or BACK for one layer."""
    numbers = f"constexpr int C = {filters}, K = {size}, P = {padding}, H = {height}, W = {width};\n"
    return f"{REALS[torch.bfloat16]}{numbers}{TENSOR_CORES}{SOURCE}{part}"


def shared_bytes(filters: int, size: int, padding: int, height: int, width: int) -> int:
    """Shared memory of ``grey_back``: two images with their gradients."""
    places = (height + 2 * padding - size + 1) // 2 * ((width + 2 * padding - size + 1) // 2)
    return 2 * (-(-(4 * (height + 2 * padding) * (width + 2 * padding) + 3 * places * filters) // 16) * 16)


def grey_pool(
    images: Tensor, weight: Tensor, bias: Tensor, padding: int, *, common: bool = False
) -> tuple[Tensor, Tensor]:
    """([T, B, PH, PW, C] in bf16, which of each four it was) of images [T, B, 1, H, W], or [B, 1, H, W] if common.

    Args:
        weight: [T, C, 1, K, K]. bias: [T, C].
    """
    rows, _, height, width = images.shape[-4:]
    trials, filters, _, size, _ = weight.shape
    pooled = tuple((pixels + 2 * padding - size + 1) // 2 for pixels in (height, width))
    out = torch.empty(trials, rows, *pooled, filters, dtype=torch.bfloat16, device=images.device)
    which = torch.empty(out.shape, dtype=torch.int8, device=images.device)
    text = source(POOL, filters, size, padding, height, width)
    grid = (blocks_for(trials, rows, POOL_BLOCKS), trials, filters // 32)
    launch(text, "grey_pool", grid, (images, weight, bias, out, which, rows, int(common)))
    return out, which


class GreyPool(torch.autograd.Function):
    """images [T, B, 1, H, W] (fp32), weight [T, C, 1, K, K], bias [T, C] → [T, B, PH, PW, C] in bf16."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        out, which = grey_pool(images, weight, bias, padding)
        ctx.save_for_backward(images, which)
        ctx.weight, ctx.padding = weight, padding
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, which = ctx.saved_tensors
        trials, rows, _, height, width = images.shape
        filters, size = ctx.weight.shape[1], ctx.weight.shape[3]
        grad, blocks = grads[0].contiguous(), blocks_for(trials, rows, BACK_BLOCKS)
        parts = torch.empty(trials, blocks, filters * (size * size + 1), device=images.device)
        sizes = (filters, size, ctx.padding, height, width)
        arguments = (images, grad, which, parts, rows)
        shared = shared_bytes(*sizes)
        launch(source(BACK, *sizes), "grey_back", (blocks, trials), arguments, shared_bytes=shared)
        of_weight, of_bias = sum_parts(parts, filters * size * size)
        return None, of_weight.as_strided(ctx.weight.shape, ctx.weight.stride()), of_bias, None
