"""Batch normalisation in training with what follows it, a sum and ReLU or GELU, together.

torch reads a layer's output five times on the way and seven times back; here it is two and four. Bytes move in pieces
of 16, several in flight for each thread where sums are made.
Shapes: B images, C channels, H and W pixels, N = B·H·W, R partial sums; channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.kernels.normpool import LANES, NORM
from seatrial.train.kernels.normpool import source as norm_source
from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, channels_last, launch

#: Blocks that sum over pixels: two for each multiprocessor of a large GPU (H200: 132).
MOST_BLOCKS = 264
MOST_CHANNELS = 2048
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}

TEXT = """
__device__ float slope(float z) {
  if (ACT == 1) return z > 0.0f ? 1.0f : 0.0f;
  if (ACT == 2)
    return 0.5f * (1.0f + erff(z * 0.7071067811865476f)) + z * 0.3989422804014327f * expf(-0.5f * z * z);
  return 1.0f;
}

// Sums of each channel's differences to its first value, and of their squares.
extern "C" __global__ void wide_moments(const Real* x, float* parts, int pixels) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  const Eight* data = (const Eight*)x + group;
  Eight first = data[0];
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
        float difference = number(values[k].at[c]) - number(first.at[c]);
        sums[c] += difference;
        sums[8 + c] += difference * difference;
      }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// table [4][C]: scale, shift, mean, 1 / deviation. A thread for eight channels of a pixel.
extern "C" __global__ void normalised(
    const Eight* x, const Eight* beside, const float* table, Eight* out, int total) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int channel = thread % (C / 8) * 8;
  Eight values = x[thread], result, others = {};
  if (beside) others = beside[thread];
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float z = number(values.at[c]) * table[channel + c] + table[C + channel + c];
    if (beside) z += number(others.at[c]);
    if (ACT == 1) z = z <= 0.0f ? 0.0f : z;  // a NaN goes on
    if (ACT == 2) z = 0.5f * z * (1.0f + erff(z * 0.7071067811865476f));
    result.at[c] = real(z);
  }
  out[thread] = result;
}

// Sums of the gradients that come through, and of their products with what they belong to less its mean. With out (a
// sum was activated) it tells where, and the gradient goes to the other summand as well.
extern "C" __global__ void gradient_sums(
    const Eight* grad, const Eight* x, const Eight* out, const float* table, Eight* beside, float* parts, int pixels) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  float sums[16] = {};
  for (int pixel = blockIdx.x * lanes + threadIdx.x / (C / 8); pixel < pixels; pixel += 2 * stride) {
    Eight gradients[2], values[2], outs[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = pixel + k * stride;
      long long at = (long long)(row < pixels ? row : pixel) * (C / 8) + group;
      gradients[k] = grad[at];
      values[k] = x[at];
      if (out) outs[k] = out[at];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = pixel + k * stride;
      if (row >= pixels) continue;
      Eight passed;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        int channel = group * 8 + c;
        float value = number(values[k].at[c]), gradient = number(gradients[k].at[c]);
        gradient *= out ? slope(number(outs[k].at[c])) : slope(value * table[channel] + table[C + channel]);
        passed.at[c] = real(gradient);
        sums[c] += gradient;
        sums[8 + c] += gradient * (value - table[2 * C + channel]);
      }
      if (beside) beside[(long long)row * (C / 8) + group] = passed;
    }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// back [2][C]: the gradient of x is scale * gradient + back[0] * x + back[1]. passed: grad is what came through.
extern "C" __global__ void gradient_of_x(
    const Eight* grad, const Eight* x, const float* table, const float* back, Eight* dx, int total, int passed) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int group = thread % (C / 8);
  Eight gradients = grad[thread], values = x[thread], result;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    int channel = group * 8 + c;
    float value = number(values.at[c]), gradient = number(gradients.at[c]);
    if (!passed) gradient *= slope(value * table[channel] + table[C + channel]);
    result.at[c] = real(gradient * table[channel] + value * back[channel] + back[C + channel]);
  }
  dx[thread] = result;
}
"""


def source(dtype: torch.dtype, channels: int, activation: str) -> str:
    """The text for one format, width and activation."""
    numbers = f"constexpr int C = {channels}, ACT = {ACTIVATIONS[activation]};\n"
    return f"{REALS[dtype]}{numbers}{EIGHT}{LANES}{TEXT}"


class NormAct(torch.autograd.Function):
    """activation(normalised x + beside), updates statistics: x and beside [B, C, H, W] channels last, the others [C].

    With ``beside`` the activation is ReLU or none.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None, norm: nn.BatchNorm2d, activation: str
    ) -> Tensor:
        channels, pixels = x.shape[1], x.numel() // x.shape[1]
        text, blocks = source(x.dtype, channels, activation), blocks_over(pixels, channels)
        parts = torch.empty(blocks, 2, channels, device=x.device)
        launch(text, "wide_moments", blocks, (x, parts, pixels))
        table = torch.empty(4, channels, device=x.device)
        statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        numbers = (blocks, pixels, norm.eps, float(norm.momentum or 0.0))
        once = norm_source(NORM, x.dtype, channels)
        launch(once, "normalise", channels // 32, (parts, x, weight, bias, table, *statistics, *numbers))
        out = channels_last(tuple(x.shape), x, x.dtype)
        groups = x.numel() // 8
        launch(text, "normalised", -(-groups // THREADS), (x, beside, table, out, groups))
        ctx.save_for_backward(x, table, out if beside is not None else None)
        ctx.activation = activation
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, table, out = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        channels, pixels = x.shape[1], x.numel() // x.shape[1]
        text, blocks = source(x.dtype, channels, ctx.activation), blocks_over(pixels, channels)
        parts = torch.empty(blocks, 2, channels, device=x.device)
        beside = channels_last(tuple(x.shape), x, x.dtype) if out is not None else None
        launch(text, "gradient_sums", blocks, (grad, x, out, table, beside, parts, pixels))
        own, back = (torch.empty(2, channels, device=x.device) for _ in range(2))
        once = norm_source(NORM, x.dtype, channels)
        launch(once, "normalise_back", channels // 32, (parts, table, own, back, blocks, pixels))
        dx, groups = channels_last(tuple(x.shape), x, x.dtype), x.numel() // 8
        passed = grad if beside is None else beside
        arguments = (passed, x, table, back, dx, groups, int(beside is not None))
        launch(text, "gradient_of_x", -(-groups // THREADS), arguments)
        return dx, own[0], own[1], beside, None, None


def blocks_over(pixels: int, channels: int) -> int:
    """Blocks for sums over so many pixels: four of them for a thread of eight channels where there are many."""
    return max(1, min(MOST_BLOCKS, -(-pixels * channels // 8 // THREADS // 4)))


def fits(norm: nn.Module) -> bool:
    """Whether the kernels know such a layer: two factors and running statistics, a width that divides a block."""
    if type(norm) is not nn.BatchNorm2d or not norm.affine or not norm.track_running_stats or norm.momentum is None:
        return False
    channels = norm.num_features
    return channels <= MOST_CHANNELS and channels % 32 == 0 and THREADS % (channels // 8) == 0
