"""What follows a convolution, in few kernels: bias or batch normalisation, ReLU and a 2×2 max-pool.

torch takes 6 to 10 kernels each way, each of which reads the layer's output again. Here a pool reads four pixels,
scales and shifts them, and remembers which one was largest; backwards only that one has a gradient.
Shapes: B images, C channels, H and W pixels, N = B·H·W, R partial sums; channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.kernels.nvrtc import EIGHT, FORMATS, THREADS, channels_last, launch
from seatrial.train.kernels.sums import sum_rows

#: Blocks that sum over pixels: about one for each multiprocessor of a large GPU (H200: 132), and partial sums stay few.
MOST_BLOCKS = 128
MOST_CHANNELS = 256

LANES = """
// Of a block's threads, for 8 channels each; parts [2][C].
__device__ void sum_lanes(float* sums, float* parts) {
  constexpr int COUNT = 2 * C < 256 ? 256 / (2 * C) : 1, EACH = 256 / (C / 8) / COUNT;  // slices, lanes of each
  __shared__ float across[16][257], slices[COUNT * 2 * C];
  for (int k = 0; k < 16; k++) across[k][threadIdx.x] = sums[k];
  __syncthreads();
  for (int i = threadIdx.x; i < COUNT * 2 * C; i += blockDim.x) {
    int slice = i / (2 * C), kind = i / C % 2, c = i % C;
    float total = 0.0f;
#pragma unroll
    for (int lane = 0; lane < EACH; lane++)
      total += across[kind * 8 + c % 8][(slice * EACH + lane) * (C / 8) + c / 8];
    slices[i] = total;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * C; i += blockDim.x) {
    float total = 0.0f;
    for (int slice = 0; slice < COUNT; slice++) total += slices[slice * 2 * C + i];
    parts[i] = total;
  }
}
"""
POOL = """
// which: 0 to 3 in reading order, the first among equals, or 4: none was above 0. scale null: 1.
extern "C" __global__ void pool(
    const Eight* x, const float* scale, const float* shift, Eight* out, Choices* which, int total, int H, int W) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int group = thread % (C / 8), place = thread / (C / 8), PH = H / 2, PW = W / 2;
  int column = place % PW, row = place / PW % PH, image = place / PW / PH;
  const Eight* corner = x + ((image * H + row * 2) * W + column * 2) * (C / 8) + group;
  Eight values[4] = {corner[0], corner[C / 8], corner[W * (C / 8)], corner[(W + 1) * (C / 8)]}, best;
  Choices choices;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float times = scale ? scale[group * 8 + c] : 1.0f, plus = shift[group * 8 + c], largest = 0.0f;
    signed char choice = 4;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float value = number(values[k].at[c]) * times + plus;
      if (!(value <= largest)) {  // a NaN goes on
        largest = value;
        choice = k;
      }
    }
    best.at[c] = real(largest);
    choices.at[c] = choice;
  }
  which[thread] = choices;
  if (!PLANES) {
    out[thread] = best;
    return;
  }
  Real* at = (Real*)out + (image * C + group * 8) * PH * PW + row * PW + column;
  for (int c = 0; c < 8; c++) at[c * PH * PW] = best.at[c];
}

// Eight channels of a place; PLANES: the channels of an image lie one after the other.
__device__ Eight eight(const Eight* grad, int place, int group, int area) {
  if (!PLANES) return grad[place * (C / 8) + group];
  const Real* at = (const Real*)grad + (place / area * C + group * 8) * area + place % area;
  Eight result;
#pragma unroll
  for (int c = 0; c < 8; c++) result.at[c] = at[c * area];
  return result;
}

// Sums of the gradients that come through, and with a table of their products with what they belong to less its mean.
extern "C" __global__ void pool_sums(
    const Eight* grad, const Choices* which, const Real* x, const float* table, float* parts, int places,
    int H, int W) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), PH = H / 2, PW = W / 2;
  float sums[16] = {};
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += gridDim.x * lanes) {
    Eight gradient = eight(grad, place, group, PH * PW);
    Choices choices = which[place * (C / 8) + group];
    int column = place % PW, row = place / PW % PH, image = place / PW / PH;
#pragma unroll
    for (int c = 0; c < 8; c++) {
      int k = choices.at[c];
      if (k == 4) continue;
      float value = number(gradient.at[c]);
      sums[c] += value;
      if (table) {
        int pixel = (image * H + row * 2 + k / 2) * W + column * 2 + k % 2;
        sums[8 + c] += value * (number(x[pixel * C + group * 8 + c]) - table[2 * C + group * 8 + c]);
      }
    }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// A thread writes the 2×2 pixels of one place, and those at odd edges, which no pool looks at.
extern "C" __global__ void pool_back(
    const Eight* grad, const Choices* which, const Eight* x, const float* scale, const float* back, Eight* dx,
    int total, int H, int W) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int group = thread % (C / 8), cell = thread / (C / 8), PH = H / 2, PW = W / 2, CH = (H + 1) / 2, CW = (W + 1) / 2;
  int column = cell % CW, row = cell / CW % CH, image = cell / CW / CH;
  bool pooled = row < PH && column < PW;
  Eight gradient = {};
  Choices choices = {};
  if (pooled) {
    int place = (image * PH + row) * PW + column;
    gradient = eight(grad, place, group, PH * PW);
    choices = which[place * (C / 8) + group];
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {
    int y = row * 2 + k / 2, z = column * 2 + k % 2;
    if (y >= H || z >= W) continue;
    int pixel = ((image * H + y) * W + z) * (C / 8) + group;
    Eight result, values = {};
    if (back) values = x[pixel];
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float value = pooled && choices.at[c] == k ? number(gradient.at[c]) : 0.0f;
      int channel = group * 8 + c;
      if (back) value = value * scale[channel] + number(values.at[c]) * back[channel] + back[C + channel];
      result.at[c] = real(value);
    }
    dx[pixel] = result;
  }
}
"""
NORM = """
// Sums of each channel's differences to its first value, and of their squares.
extern "C" __global__ void moments(const Real* x, float* parts, int pixels) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8);
  Eight first = ((const Eight*)x)[group];
  float sums[16] = {};
  for (int pixel = blockIdx.x * lanes + threadIdx.x / (C / 8); pixel < pixels; pixel += gridDim.x * lanes) {
    Eight values = ((const Eight*)x)[(long long)pixel * (C / 8) + group];
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float difference = number(values.at[c]) - number(first.at[c]);
      sums[c] += difference;
      sums[8 + c] += difference * difference;
    }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// Each channel's two totals over the rows of parts [rows][2][C], which eight warps take in turns.
__device__ void total_parts(const float* parts, int rows, int channel, float* totals) {
  __shared__ float across[2][8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float first = 0.0f, second = 0.0f;
#pragma unroll 8
  for (int row = warp; row < rows; row += 8) {
    first += parts[row * 2 * C + channel];
    second += parts[row * 2 * C + C + channel];
  }
  across[0][warp][lane] = first;
  across[1][warp][lane] = second;
  __syncthreads();
  for (int kind = 0; kind < 2; kind++) {
    totals[kind] = 0.0f;
    for (int other = 0; other < 8; other++) totals[kind] += across[kind][other][lane];
  }
}

// table [4][C]: scale, shift, mean, 1 / deviation. Running statistics as torch keeps them.
extern "C" __global__ void normalise(
    const float* parts, const Real* x, const float* weight, const float* bias, float* table, float* running_mean,
    float* running_variance, long long* batches, int rows, int pixels,
    double epsilon, double momentum) {
  float totals[2];
  int c = blockIdx.x * 32 + threadIdx.x % 32;
  total_parts(parts, rows, c, totals);
  if (threadIdx.x >= 32) return;
  float away = totals[0] / pixels, variance = fmaxf(totals[1] / pixels - away * away, 0.0f);
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

// grads [2][C]: of weight and bias; back [2][C]: the gradient of x is scale * gradient + back[0] * x + back[1].
extern "C" __global__ void normalise_back(
    const float* parts, const float* table, float* grads, float* back, int rows, int pixels) {
  float totals[2];
  int c = blockIdx.x * 32 + threadIdx.x % 32;
  total_parts(parts, rows, c, totals);
  if (threadIdx.x >= 32) return;
  float scale = table[c], mean = table[2 * C + c], inverse = table[3 * C + c];
  grads[c] = totals[1] * inverse;
  grads[C + c] = totals[0];
  back[c] = -scale * inverse * inverse * totals[1] / pixels;
  back[C + c] = -scale * totals[0] / pixels - back[c] * mean;
}
"""


def source(part: str, dtype: torch.dtype, channels: int, *, planes: bool = False) -> str:
    """The text of POOL or NORM for one format and layer. planes: pooled values lie as [B, C, H, W] is written."""
    numbers = f"constexpr int C = {channels};\nconstexpr bool PLANES = {str(planes).lower()};\n"
    return f"{FORMATS[dtype]}{numbers}{EIGHT}{LANES}{part}"


class BiasReluPool(torch.autograd.Function):
    """x [B, C, H, W], bias [C] → [B, C, H/2, W/2], with ``planes`` in memory as it is written, else channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, planes: bool) -> Tensor:
        out, which = pool(x, None, bias, planes=planes)
        ctx.save_for_backward(which)
        ctx.size, ctx.planes = x.shape[2:], planes
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (which,) = ctx.saved_tensors
        grad = dense(grads[0], planes=ctx.planes)
        parts = pool_sums(grad, which, ctx.size, planes=ctx.planes)
        return pool_back(grad, which, ctx.size, planes=ctx.planes), sum_rows(parts)[: grad.shape[1]], None


class NormReluPool(torch.autograd.Function):
    """Batch normalisation in training: x [B, C, H, W], weight and bias [C] → [B, C, H/2, W/2]; updates statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, planes: bool) -> Tensor:
        channels, pixels = x.shape[1], x.numel() // x.shape[1]
        text, blocks = source(NORM, x.dtype, channels), blocks_over(pixels, channels)
        parts = torch.empty(blocks, 2, channels, device=x.device)
        launch(text, "moments", blocks, (x, parts, pixels))
        table = torch.empty(4, channels, device=x.device)
        statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        numbers = (blocks, pixels, norm.eps, float(norm.momentum or 0.0))
        launch(text, "normalise", channels // 32, (parts, x, weight, bias, table, *statistics, *numbers))
        out, which = pool(x, table[0], table[1], planes=planes)
        ctx.save_for_backward(x, which, table)
        ctx.planes = planes
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, which, table = ctx.saved_tensors
        grad, channels = dense(grads[0], planes=ctx.planes), x.shape[1]
        parts = pool_sums(grad, which, x.shape[2:], x, table, planes=ctx.planes)
        own, back = (torch.empty(2, channels, device=x.device) for _ in range(2))
        numbers = (len(parts), x.numel() // channels)
        launch(source(NORM, x.dtype, channels), "normalise_back", channels // 32, (parts, table, own, back, *numbers))
        dx = pool_back(grad, which, x.shape[2:], x, table, back, planes=ctx.planes)
        return dx, own[0], own[1], None, None


def pool(x: Tensor, scale: Tensor | None, shift: Tensor, *, planes: bool) -> tuple[Tensor, Tensor]:
    """[B, C, H/2, W/2] of ``x * scale + shift``, and which of each four it was."""
    rows, channels, height, width = x.shape
    pooled = (rows, channels, height // 2, width // 2)
    out = torch.empty(pooled, dtype=x.dtype, device=x.device) if planes else channels_last(pooled, x, x.dtype)
    which = channels_last(pooled, x, torch.int8)
    threads = out.numel() // 8
    arguments = (x, scale, shift, out, which, threads, height, width)
    launch(source(POOL, x.dtype, channels, planes=planes), "pool", -(-threads // THREADS), arguments)
    return out, which


def dense(grad: Tensor, *, planes: bool) -> Tensor:
    """A gradient in the order of what was pooled."""
    return grad.contiguous(memory_format=torch.contiguous_format if planes else torch.channels_last)


def pool_sums(
    grad: Tensor,
    which: Tensor,
    size: torch.Size,
    x: Tensor | None = None,
    table: Tensor | None = None,
    *,
    planes: bool,
) -> Tensor:
    """[R, 2C]: partial sums of gradients, and of gradients times normalised inputs."""
    channels, places = grad.shape[1], grad.numel() // grad.shape[1]
    blocks = blocks_over(places, channels)
    parts = torch.empty(blocks, 2 * channels, device=grad.device)
    text = source(POOL, grad.dtype, channels, planes=planes)
    launch(text, "pool_sums", blocks, (grad, which, x, table, parts, places, *size))
    return parts


def pool_back(
    grad: Tensor,
    which: Tensor,
    size: torch.Size,
    x: Tensor | None = None,
    table: Tensor | None = None,
    back: Tensor | None = None,
    *,
    planes: bool,
) -> Tensor:
    """The gradient [B, C, H, W] of what was pooled."""
    rows, channels, height, width = *grad.shape[:2], *size
    dx = channels_last((rows, channels, height, width), grad, grad.dtype)
    threads = rows * -(-height // 2) * -(-width // 2) * (channels // 8)
    text = source(POOL, grad.dtype, channels, planes=planes)
    arguments = (grad, which, x, table, back, dx, threads, height, width)
    launch(text, "pool_back", -(-threads // THREADS), arguments)
    return dx


def blocks_over(pixels: int, channels: int) -> int:
    """Blocks for sums over so many pixels, a thread for eight channels of one."""
    return min(MOST_BLOCKS, -(-pixels * channels // 8 // THREADS))


def fits(channels: int) -> bool:
    """Whether a block's threads share out so many channels evenly."""
    return channels <= MOST_CHANNELS and channels % 32 == 0 and THREADS % (channels // 8) == 0
