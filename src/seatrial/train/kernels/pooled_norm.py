"""A 2×2 max-pool, batch normalisation in training and its activation, together.

torch reads what a convolution wrote three times on the way and writes its gradient four times; here the pool sums up
what the normalisation needs, and the gradient is written once.
Shapes: B images, C channels, H and W pixels, PH and PW of the pooled; channels last.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from seatrial.train.kernels import normact
from seatrial.train.kernels.normpool import LANES, NORM
from seatrial.train.kernels.normpool import source as norm_source
from seatrial.train.kernels.nvrtc import EIGHT, FORMATS, GELU, THREADS, channels_last, launch
from seatrial.train.kernels.pool import max_pool

TEXT = """
// The largest of 2×2 for eight channels, the first among equals; a NaN goes on.
__device__ Eight largest(const Eight* corner, int W, Choices* which) {
  Eight values[4] = {corner[0], corner[C / 8], corner[W * (C / 8)], corner[(W + 1) * (C / 8)]}, best = values[0];
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float most = number(best.at[c]);
    which->at[c] = 0;
#pragma unroll
    for (int k = 1; k < 4; k++) {
      float value = number(values[k].at[c]);
      if (!(value <= most) && most == most) most = value, best.at[c] = values[k].at[c], which->at[c] = k;
    }
  }
  return best;
}

// The pool, and of its results each channel's sums of differences to its first value and of their squares.
extern "C" __global__ void pooled_moments(
    const Eight* x, Eight* out, Choices* which, float* parts, int places, int H, int W) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes, PH = H / 2, PW = W / 2;
  Choices choices;
  Eight first = largest(x + group, W, &choices);
  float sums[16] = {};
#pragma unroll 2
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += stride) {
    int column = place % PW, row = place / PW % PH, image = place / PW / PH;
    Eight best = largest(x + ((image * H + row * 2) * W + column * 2) * (C / 8) + group, W, &choices);
    out[place * (C / 8) + group] = best;
    which[place * (C / 8) + group] = choices;
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float difference = number(best.at[c]) - number(first.at[c]);
      sums[c] += difference;
      sums[8 + c] += difference * difference;
    }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// A thread computes the gradient of one place and writes its 2×2 pixels, and those at odd edges, which no pool sees.
extern "C" __global__ void gradient_unpooled(
    const Eight* grad, const Eight* pooled, const Choices* which, const float* table, const float* back, Eight* dx,
    int total, int H, int W) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int group = thread % (C / 8), cell = thread / (C / 8), PH = H / 2, PW = W / 2, CH = (H + 1) / 2, CW = (W + 1) / 2;
  int column = cell % CW, row = cell / CW % CH, image = cell / CW / CH;
  Eight result = {};
  Choices choices = {};
  if (row < PH && column < PW) {
    int place = ((image * PH + row) * PW + column) * (C / 8) + group;
    Eight gradients = grad[place], values = pooled[place];
    choices = which[place];
#pragma unroll
    for (int c = 0; c < 8; c++) {
      int channel = group * 8 + c;
      float value = number(values.at[c]);
      float gradient = number(gradients.at[c]) * slope(value * table[channel] + table[C + channel]);
      result.at[c] = real(gradient * table[channel] + value * back[channel] + back[C + channel]);
    }
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    int y = row * 2 + k / 2, z = column * 2 + k % 2;
    if (y >= H || z >= W) continue;
    Eight pixel;
#pragma unroll
    for (int c = 0; c < 8; c++) pixel.at[c] = choices.at[c] == k ? result.at[c] : 0;
    dx[((image * H + y) * W + z) * (C / 8) + group] = pixel;
  }
}
"""


def source(dtype: torch.dtype, channels: int, activation: str) -> str:
    """The text for one format, width and activation."""
    numbers = f"constexpr int C = {channels}, ACT = {normact.ACTIVATIONS[activation]};\n"
    return f"{FORMATS[dtype]}{numbers}{EIGHT}{LANES}{GELU}{normact.SLOPE}{TEXT}"


class PooledNormAct(torch.autograd.Function):
    """x [B, C, H, W] channels last, weight and bias [C] → activation(normalised pool(x)); updates statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, activation: str) -> Tensor:
        rows, channels, height, width = x.shape
        size = (rows, channels, height // 2, width // 2)
        pooled, which = channels_last(size, x, x.dtype), channels_last(size, x, torch.int8)
        places = pooled.numel() // channels
        blocks = normact.blocks_over(places, channels)
        parts = torch.empty(blocks, 2, channels, device=x.device)
        text = source(x.dtype, channels, activation)
        launch(text, "pooled_moments", blocks, (x, pooled, which, parts, places, height, width))
        table = torch.empty(4, channels, device=x.device)
        statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        numbers = (blocks, places, norm.eps, float(norm.momentum or 0.0))
        once = norm_source(NORM, x.dtype, channels)
        launch(once, "normalise", channels // 32, (parts, pooled, weight, bias, table, *statistics, *numbers))
        out, groups = channels_last(size, x, x.dtype), pooled.numel() // 8
        plain = normact.source(x.dtype, channels, activation)
        launch(plain, "normalised", -(-groups // THREADS), (pooled, None, table, out, groups))
        ctx.save_for_backward(pooled, which, table)
        ctx.size, ctx.activation = (height, width), activation
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        pooled, which, table = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        (rows, channels), (height, width) = pooled.shape[:2], ctx.size
        own, back = normact.gradient_totals(grad, pooled, table, ctx.activation)
        dx = channels_last((rows, channels, height, width), pooled, pooled.dtype)
        threads = rows * -(-height // 2) * -(-width // 2) * (channels // 8)
        arguments = (grad, pooled, which, table, back, dx, threads, height, width)
        text = source(pooled.dtype, channels, ctx.activation)
        launch(text, "gradient_unpooled", -(-threads // THREADS), arguments)
        return dx, own[0], own[1], None, None


def pooled_norm_act(x: Tensor, norm: nn.BatchNorm2d, activation: str) -> Tensor:
    """activation(norm(max_pool(x))): by these kernels in training on a GPU, else by torch's layers."""
    if not normact.takes(x, norm) or min(x.shape[2:]) < 2:
        return normact.torch_activation(norm(max_pool(x)), activation)
    return cast(Tensor, PooledNormAct.apply(x, norm.weight, norm.bias, norm, activation))  # type: ignore[no-untyped-call]
