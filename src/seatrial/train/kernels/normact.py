"""Batch normalisation in training with what follows it, a sum and ReLU or GELU, together.

torch reads a layer's output five times on the way and seven times back; here it is two and four. Bytes move in pieces
of 16, several in flight for each thread; what a channel needs stays in its thread's registers. Two kernels each way:
the last block that ends makes the totals of all blocks' sums, in a fixed order.
Shapes: B images, C channels, H and W pixels, N = B·H·W, R partial sums, G their groups; channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.kernels.normpool import LANES
from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, channels_last, launch, refuse_second_derivatives

#: Blocks that sum over pixels: two for each multiprocessor of a large GPU (H200: 132).
MOST_BLOCKS = 264
MOST_CHANNELS = 2048
#: Rows of partial sums are added in so many groups, and these by the last block of all.
GROUPS = 16
#: Pixels of one thread where a result is written.
EACH = 4
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}

#: Sums of all blocks, made by the last of them: first of each group, then over the groups. ``counters`` [G + 1] are
#: zero before and after.
TOTALS = """
__device__ void add_rows(const float* matrix, int rows, float* out) {
  constexpr int WIDE = C / 2, ACROSS = WIDE < 256 ? WIDE : 256, DOWN = 256 / ACROSS;  // fours of 2C columns
  __shared__ float4 held[256];
  for (int column = threadIdx.x % ACROSS; column < WIDE; column += ACROSS) {
    float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
    for (int row = threadIdx.x / ACROSS; row < rows; row += DOWN) {
      float4 more = __ldcg((const float4*)matrix + row * WIDE + column);
      total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    if (DOWN > 1) {
      held[threadIdx.x] = total;
      __syncthreads();
      for (int other = 1; other < DOWN && threadIdx.x < ACROSS; other++) {
        float4 more = held[other * ACROSS + threadIdx.x];
        total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
      }
      __syncthreads();
    }
    if (threadIdx.x < ACROSS) ((float4*)out)[column] = total;
  }
}

__device__ bool last_of(unsigned* counter, unsigned count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) == count - 1;
    if (last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// True in one block, with the sums over all blocks' rows of parts [blocks][2][C] in totals [2][C].
__device__ bool totals_of(const float* parts, float* groups, unsigned* counters, float* totals) {
  int blocks = gridDim.x, each = (blocks + GROUPS - 1) / GROUPS, group = blockIdx.x / each;
  int rows = blocks - group * each < each ? blocks - group * each : each;
  if (!last_of(counters + group, rows)) return false;
  add_rows(parts + (long long)group * each * 2 * C, rows, groups + group * 2 * C);
  if (!last_of(counters + GROUPS, (blocks + each - 1) / each)) return false;
  add_rows(groups, (blocks + each - 1) / each, totals);
  __syncthreads();
  return true;
}
"""

TEXT = """
struct Numbers { float at[8]; };
__device__ Numbers eight_of(const float* numbers, int group) {
  float4 low = ((const float4*)numbers)[group * 2], high = ((const float4*)numbers)[group * 2 + 1];
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

__device__ float slope(float z) {
  if (ACT == 1) return z > 0.0f ? 1.0f : 0.0f;
  if (ACT == 2)
    return 0.5f * (1.0f + erff(z * 0.7071067811865476f)) + z * 0.3989422804014327f * expf(-0.5f * z * z);
  return 1.0f;
}

// From sums of each channel's differences to its first value, and of their squares: table [4][C] with scale, shift,
// mean, 1 / deviation, and running statistics as torch keeps them.
extern "C" __global__ void wide_moments(
    const Real* x, float* parts, float* groups, unsigned* counters, const float* weight, const float* bias,
    float* table, float* running_mean, float* running_variance, long long* batches, int pixels, double epsilon,
    double momentum) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  const Eight* data = (const Eight*)x + group;
  Eight first = data[0];
  Numbers start;
#pragma unroll
  for (int c = 0; c < 8; c++) start.at[c] = number(first.at[c]);
  float sums[16] = {};
  for (int pixel = blockIdx.x * lanes + threadIdx.x / (C / 8); pixel < pixels; pixel += 4 * stride) {
    Eight values[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int at = pixel + k * stride;
      values[k] = at < pixels ? data[(long long)at * (C / 8)] : first;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float difference = number(values[k].at[c]) - start.at[c];
        sums[c] += difference;
        sums[8 + c] += difference * difference;
      }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
  __shared__ float4 room[C / 2];
  float* totals = (float*)room;
  if (!totals_of(parts, groups, counters, totals)) return;
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    float away = totals[c] / pixels, variance = fmaxf(totals[C + c] / pixels - away * away, 0.0f);
    float mean = number(x[c]) + away, inverse = 1.0f / sqrtf(variance + (float)epsilon);
    table[c] = weight[c] * inverse;
    table[C + c] = bias[c] - mean * weight[c] * inverse;
    table[2 * C + c] = mean;
    table[3 * C + c] = inverse;
    float share = (float)momentum;
    running_mean[c] += share * (mean - running_mean[c]);
    running_variance[c] += share * (variance * pixels / (pixels - 1.0f) - running_variance[c]);
    if (c == 0) batches[0] += 1;
  }
}

// A thread for eight channels of EACH pixels. mask: a bit for each number of a sum that was above 0.
extern "C" __global__ void normalised(
    const Eight* x, const Eight* beside, const float* table, Eight* out, unsigned char* mask, int total) {
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Eight values[EACH], others[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    values[k] = x[at];
    if (beside) others[k] = beside[at];
  }
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    Eight result;
    unsigned above = 0;
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float z = number(values[k].at[c]) * scale.at[c] + shift.at[c];
      if (beside) z += number(others[k].at[c]);
      above |= (z > 0.0f ? 1u : 0u) << c;
      if (ACT == 1) z = z <= 0.0f ? 0.0f : z;  // a NaN goes on
      if (ACT == 2) z = 0.5f * z * (1.0f + erff(z * 0.7071067811865476f));
      result.at[c] = real(z);
    }
    out[at] = result;
    if (beside) mask[at] = above;
  }
}

// Sums of the gradients that come through, and of their products with what they belong to less its mean: grads [2][C]
// of weight and bias; back [2][C]: the gradient of x is scale * gradient + back[0] * x + back[1]. With a mask (a sum
// was activated) that tells where, and the gradient goes to the other summand as well.
extern "C" __global__ void gradient_sums(
    const Eight* grad, const Eight* x, const unsigned char* mask, const float* table, Eight* beside, float* parts,
    float* groups, unsigned* counters, float* grads, float* back, int pixels) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group), mean = eight_of(table + 2 * C, group);
  float sums[16] = {};
  for (int pixel = blockIdx.x * lanes + threadIdx.x / (C / 8); pixel < pixels; pixel += 2 * stride) {
    Eight gradients[2], values[2];
    unsigned above[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = pixel + k * stride;
      long long at = (long long)(row < pixels ? row : pixel) * (C / 8) + group;
      gradients[k] = grad[at];
      values[k] = x[at];
      above[k] = mask ? mask[at] : 0;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = pixel + k * stride;
      if (row >= pixels) continue;
      Eight passed;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float value = number(values[k].at[c]), gradient = number(gradients[k].at[c]);
        if (!mask) gradient *= slope(value * scale.at[c] + shift.at[c]);
        else if (ACT == 1) gradient = above[k] >> c & 1 ? gradient : 0.0f;
        passed.at[c] = real(gradient);
        sums[c] += gradient;
        sums[8 + c] += gradient * (value - mean.at[c]);
      }
      if (mask) beside[(long long)row * (C / 8) + group] = passed;
    }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
  __shared__ float4 room[C / 2];
  float* totals = (float*)room;
  if (!totals_of(parts, groups, counters, totals)) return;
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    float inverse = table[3 * C + c], times = table[c], of_products = totals[C + c];
    grads[c] = of_products * inverse;
    grads[C + c] = totals[c];
    back[c] = -times * inverse * inverse * of_products / pixels;
    back[C + c] = -times * totals[c] / pixels - back[c] * table[2 * C + c];
  }
}

// passed: grad is what came through.
extern "C" __global__ void gradient_of_x(
    const Eight* grad, const Eight* x, const float* table, const float* back, Eight* dx, int total, int passed) {
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Numbers times = eight_of(back, group), plus = eight_of(back + C, group);
  Eight gradients[EACH], values[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    gradients[k] = grad[at];
    values[k] = x[at];
  }
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    Eight result;
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float value = number(values[k].at[c]), gradient = number(gradients[k].at[c]);
      if (!passed) gradient *= slope(value * scale.at[c] + shift.at[c]);
      result.at[c] = real(gradient * scale.at[c] + value * times.at[c] + plus.at[c]);
    }
    dx[at] = result;
  }
}
"""


def source(dtype: torch.dtype, channels: int, activation: str) -> str:
    """The text for one format, width and activation."""
    numbers = f"constexpr int C = {channels}, ACT = {ACTIVATIONS[activation]}, GROUPS = {GROUPS}, EACH = {EACH};\n"
    return f"{REALS[dtype]}{numbers}{EIGHT}{LANES}{TOTALS}{TEXT}"


class NormAct(torch.autograd.Function):
    """activation(normalised x + beside), updates statistics: x and beside [B, C, H, W] channels last, the others [C].

    With ``beside`` the activation is ReLU or none. ``counters``: [G + 1] zeros that only this layer uses.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        beside: Tensor | None,
        norm: nn.BatchNorm2d,
        activation: str,
        counters: Tensor,
    ) -> Tensor:
        channels, pixels, items = x.shape[1], x.numel() // x.shape[1], x.numel() // 8
        text, blocks = source(x.dtype, channels, activation), blocks_over(pixels, channels)
        table = torch.empty(4, channels, device=x.device)
        statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        numbers = (pixels, norm.eps, float(norm.momentum or 0.0))
        sums = _partial_sums(x, blocks)
        launch(text, "wide_moments", blocks, (x, *sums, counters, weight, bias, table, *statistics, *numbers))
        out = channels_last(tuple(x.shape), x, x.dtype)
        mask = torch.empty(items, dtype=torch.uint8, device=x.device) if beside is not None else None
        launch(text, "normalised", -(-items // (THREADS * EACH)), (x, beside, table, out, mask, items))
        ctx.save_for_backward(x, table, mask, counters)
        ctx.activation = activation
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        x, table, mask, counters = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        channels, pixels, items = x.shape[1], x.numel() // x.shape[1], x.numel() // 8
        text, blocks = source(x.dtype, channels, ctx.activation), blocks_over(pixels, channels)
        beside = channels_last(tuple(x.shape), x, x.dtype) if mask is not None else None
        own, back = (torch.empty(2, channels, device=x.device) for _ in range(2))
        sums = _partial_sums(x, blocks)
        launch(text, "gradient_sums", blocks, (grad, x, mask, table, beside, *sums, counters, own, back, pixels))
        dx = channels_last(tuple(x.shape), x, x.dtype)
        passed = grad if beside is None else beside
        arguments = (passed, x, table, back, dx, items, int(beside is not None))
        launch(text, "gradient_of_x", -(-items // (THREADS * EACH)), arguments)
        return dx, own[0], own[1], beside, None, None, None


def _partial_sums(x: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Room for the sums of each block, [R, 2, C], and of each group of blocks, [G, 2, C]."""
    channels = x.shape[1]
    return torch.empty(blocks, 2, channels, device=x.device), torch.empty(GROUPS, 2, channels, device=x.device)


def blocks_over(pixels: int, channels: int) -> int:
    """Blocks for sums over so many pixels: four of them for a thread of eight channels where there are many."""
    return max(1, min(MOST_BLOCKS, -(-pixels * channels // 8 // THREADS // 4)))


def fits(norm: nn.Module) -> bool:
    """Whether the kernels know such a layer: two factors and running statistics, a width that divides a block."""
    if type(norm) is not nn.BatchNorm2d or not norm.affine or not norm.track_running_stats or norm.momentum is None:
        return False
    channels = norm.num_features
    return channels <= MOST_CHANNELS and channels % 32 == 0 and THREADS % (channels // 8) == 0
