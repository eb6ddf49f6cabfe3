"""Batch normalisation in training with its activation, behind a 2×2 max-pool or alone.

torch reads what a convolution wrote three times before a pooled normalisation and writes its gradient four times; here
the pool sums up what the normalisation needs, and the gradient is written once. What a channel needs stays in its
thread's registers, and bytes move in pieces of 16. In fp16, too (normact.py, which takes a sum beside, has no fp16).
Shapes: B images, C channels, H and W pixels, PH and PW of the pooled; places: pixels of what is normalised; channels
last.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.kernels.normpool import LANES
from seatrial.train.kernels.normpool import source as norm_source
from seatrial.train.kernels.nvrtc import EIGHT, FORMATS, GELU, THREADS, channels_last, launch, usable

#: Blocks that sum over places: two for each multiprocessor of a large GPU (H200: 132).
MOST_BLOCKS = 264
MOST_CHANNELS = 2048
#: Places of one thread where each has a result of its own.
EACH = 4
ACTIVATIONS = {"relu": 1, "gelu": 2}

TEXT = """
struct Numbers { float at[8]; };
__device__ Numbers eight_of(const float* numbers, int group) {
  Numbers result;
#pragma unroll
  for (int c = 0; c < 8; c++) result.at[c] = numbers[group * 8 + c];
  return result;
}
__device__ float activated(float z) { return ACT == 2 ? gelu(z) : z <= 0.0f ? 0.0f : z; }  // a NaN goes on
__device__ float slope(float z) { return ACT == 2 ? gelu_slope(z) : z > 0.0f ? 1.0f : 0.0f; }

struct Square { Eight at[4]; };
__device__ Square square_of(const Eight* x, int place, int group, int H, int W) {
  int PH = H / 2, PW = W / 2, column = place % PW, row = place / PW % PH, image = place / PW / PH;
  const Eight* corner = x + ((long long)(image * H + row * 2) * W + column * 2) * (C / 8) + group;
  return {corner[0], corner[C / 8], corner[W * (C / 8)], corner[(W + 1) * (C / 8)]};
}
// The largest for eight channels, the first among equals; a NaN goes on.
__device__ Eight largest(const Square& values, Choices* which) {
  Eight best = values.at[0];
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float most = number(best.at[c]);
    which->at[c] = 0;
#pragma unroll
    for (int k = 1; k < 4; k++) {
      float value = number(values.at[k].at[c]);
      if (!(value <= most) && most == most) most = value, best.at[c] = values.at[k].at[c], which->at[c] = k;
    }
  }
  return best;
}
__device__ void add(float* sums, const Eight& values, const Numbers& start) {
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float difference = number(values.at[c]) - start.at[c];
    sums[c] += difference;
    sums[8 + c] += difference * difference;
  }
}

// Each channel's sums of differences to its first value and of their squares.
extern "C" __global__ void plain_moments(const Eight* x, float* parts, int places) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Eight first = x[group];
  Numbers start;
  for (int c = 0; c < 8; c++) start.at[c] = number(first.at[c]);
  float sums[16] = {};
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += 4 * stride) {
    Eight values[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int at = place + k * stride;
      values[k] = at < places ? x[(long long)at * (C / 8) + group] : first;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) add(sums, values[k], start);
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// The same of what the pool gives, which is written, and which pixel it was.
extern "C" __global__ void pooled_moments(
    const Eight* x, Eight* out, Choices* which, float* parts, int places, int H, int W) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Choices choices[2];
  Eight first = largest(square_of(x, 0, group, H, W), choices);
  Numbers start;
  for (int c = 0; c < 8; c++) start.at[c] = number(first.at[c]);
  float sums[16] = {};
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += 2 * stride) {
    int next = place + stride;
    Square one = square_of(x, place, group, H, W), two = square_of(x, next < places ? next : place, group, H, W);
    Eight best = largest(one, choices), other = largest(two, choices + 1);
    out[(long long)place * (C / 8) + group] = best;
    which[(long long)place * (C / 8) + group] = choices[0];
    add(sums, best, start);
    if (next >= places) continue;
    out[(long long)next * (C / 8) + group] = other;
    which[(long long)next * (C / 8) + group] = choices[1];
    add(sums, other, start);
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// table [4][C]: scale, shift, mean, 1 / deviation. A thread for eight channels of EACH places.
extern "C" __global__ void normalised(const Eight* x, const float* table, Eight* out, int total) {
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Eight values[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k * blockDim.x < total) values[k] = x[first + k * blockDim.x];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    Eight result;
#pragma unroll
    for (int c = 0; c < 8; c++) result.at[c] = real(activated(number(values[k].at[c]) * scale.at[c] + shift.at[c]));
    if (first + k * blockDim.x < total) out[first + k * blockDim.x] = result;
  }
}

// By running statistics, of the pool or without one: each thread eight channels of a place.
extern "C" __global__ void evaluated(
    const Eight* x, const float* running_mean, const float* running_variance, const float* weight, const float* bias,
    Eight* out, int total, int H, int W, int pools, double epsilon) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x, group = threadIdx.x % (C / 8);
  if (thread >= total) return;
  Choices choices;
  Eight values = pools ? largest(square_of(x, thread / (C / 8), group, H, W), &choices) : x[thread], result;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    int channel = group * 8 + c;
    float scale = weight[channel] * rsqrtf(running_variance[channel] + (float)epsilon);
    result.at[c] = real(activated((number(values.at[c]) - running_mean[channel]) * scale + bias[channel]));
  }
  out[thread] = result;
}

// Sums of the gradients that come through, and of their products with what they belong to less its mean.
extern "C" __global__ void gradient_sums(
    const Eight* grad, const Eight* x, const float* table, float* parts, int places) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group), mean = eight_of(table + 2 * C, group);
  float sums[16] = {};
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += 2 * stride) {
    Eight gradients[2], values[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = place + k * stride;
      long long at = (long long)(row < places ? row : place) * (C / 8) + group;
      gradients[k] = grad[at];
      values[k] = x[at];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (place + k * stride >= places) continue;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float value = number(values[k].at[c]);
        float gradient = number(gradients[k].at[c]) * slope(value * scale.at[c] + shift.at[c]);
        sums[c] += gradient;
        sums[8 + c] += gradient * (value - mean.at[c]);
      }
    }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// back [2][C]: the gradient of x is scale * gradient + back[0] * x + back[1].
__device__ Eight gradient_at(const Eight& gradients, const Eight& values, const Numbers& scale, const Numbers& shift,
                             const Numbers& times, const Numbers& plus) {
  Eight result;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float value = number(values.at[c]);
    float gradient = number(gradients.at[c]) * slope(value * scale.at[c] + shift.at[c]);
    result.at[c] = real(gradient * scale.at[c] + value * times.at[c] + plus.at[c]);
  }
  return result;
}

extern "C" __global__ void gradient_of_x(
    const Eight* grad, const Eight* x, const float* table, const float* back, Eight* dx, int total) {
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Numbers times = eight_of(back, group), plus = eight_of(back + C, group);
  Eight gradients[EACH], values[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at < total) gradients[k] = grad[at], values[k] = x[at];
  }
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k * blockDim.x < total)
      dx[first + k * blockDim.x] = gradient_at(gradients[k], values[k], scale, shift, times, plus);
}

// A thread computes the gradient of two places and writes the 2×2 pixels of each, and those at odd edges, which no
// pool sees.
extern "C" __global__ void gradient_unpooled(
    const Eight* grad, const Eight* pooled, const Choices* which, const float* table, const float* back, Eight* dx,
    int total, int H, int W) {
  int group = threadIdx.x % (C / 8), PH = H / 2, PW = W / 2, CH = (H + 1) / 2, CW = (W + 1) / 2;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Numbers times = eight_of(back, group), plus = eight_of(back + C, group);
  Eight gradients[2], values[2];
  Choices choices[2];
  int first = blockIdx.x * blockDim.x * 2 + threadIdx.x;
#pragma unroll
  for (int n = 0; n < 2; n++) {
    int cell = (first + n * blockDim.x) / (C / 8), column = cell % CW, row = cell / CW % CH, image = cell / CW / CH;
    if (first + n * blockDim.x >= total || row >= PH || column >= PW) continue;
    long long place = (long long)((image * PH + row) * PW + column) * (C / 8) + group;
    gradients[n] = grad[place], values[n] = pooled[place], choices[n] = which[place];
  }
#pragma unroll
  for (int n = 0; n < 2; n++) {
    int cell = (first + n * blockDim.x) / (C / 8), column = cell % CW, row = cell / CW % CH, image = cell / CW / CH;
    if (first + n * blockDim.x >= total) break;
    Eight result = {};
    bool pooled_here = row < PH && column < PW;
    if (pooled_here) result = gradient_at(gradients[n], values[n], scale, shift, times, plus);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int y = row * 2 + k / 2, z = column * 2 + k % 2;
      if (y >= H || z >= W) continue;
      Eight pixel;
#pragma unroll
      for (int c = 0; c < 8; c++) pixel.at[c] = pooled_here && choices[n].at[c] == k ? result.at[c] : 0;
      dx[((long long)(image * H + y) * W + z) * (C / 8) + group] = pixel;
    }
  }
}
"""


def source(dtype: torch.dtype, channels: int, activation: str) -> str:
    """The text for one format, width and activation."""
    numbers = f"constexpr int C = {channels}, ACT = {ACTIVATIONS[activation]}, EACH = {EACH};\n"
    return f"{FORMATS[dtype]}{numbers}{EIGHT}{LANES}{GELU}{TEXT}"


class PooledNormAct(torch.autograd.Function):
    """x [B, C, H, W] channels last, weight and bias [C] → activation(normalised pool(x)) or, with ``pools`` false,
    activation(normalised x); updates statistics."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, activation: str, pools: bool
    ) -> Tensor:
        rows, channels, height, width = x.shape
        size = (rows, channels, height // 2, width // 2) if pools else (rows, channels, height, width)
        places, items = rows * size[2] * size[3], rows * size[2] * size[3] * channels // 8
        blocks, text = blocks_over(places, channels), source(x.dtype, channels, activation)
        parts = torch.empty(blocks, 2, channels, device=x.device)
        normal, which = x, None
        if pools:
            normal, which = channels_last(size, x, x.dtype), channels_last(size, x, torch.int8)
            launch(text, "pooled_moments", blocks, (x, normal, which, parts, places, height, width))
        else:
            launch(text, "plain_moments", blocks, (x, parts, places))
        table = torch.empty(4, channels, device=x.device)
        statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        numbers = (blocks, places, norm.eps, float(norm.momentum or 0.0))
        once = norm_source(x.dtype, channels)
        launch(once, "normalise", channels // 32, (parts, normal, weight, bias, table, *statistics, *numbers))
        out = channels_last(size, x, x.dtype)
        launch(text, "normalised", -(-items // (THREADS * EACH)), (normal, table, out, items))
        ctx.save_for_backward(normal, which, table)
        ctx.size, ctx.activation = (height, width), activation
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normal, which, table = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        (rows, channels), (height, width), dtype = normal.shape[:2], ctx.size, normal.dtype
        places, text = normal.numel() // channels, source(dtype, channels, ctx.activation)
        blocks = blocks_over(places, channels)
        parts = torch.empty(blocks, 2, channels, device=normal.device)
        launch(text, "gradient_sums", blocks, (grad, normal, table, parts, places))
        own, back = (torch.empty(2, channels, device=normal.device) for _ in range(2))
        once = norm_source(dtype, channels)
        launch(once, "normalise_back", channels // 32, (parts, table, own, back, blocks, places))
        dx = channels_last((rows, channels, height, width), normal, dtype)
        if which is None:
            items = normal.numel() // 8
            launch(text, "gradient_of_x", -(-items // (THREADS * EACH)), (grad, normal, table, back, dx, items))
        else:
            items = rows * -(-height // 2) * -(-width // 2) * (channels // 8)
            arguments = (grad, normal, which, table, back, dx, items, height, width)
            launch(text, "gradient_unpooled", -(-items // (2 * THREADS)), arguments)
        return dx, own[0], own[1], None, None, None


def norm_act(x: Tensor, norm: nn.BatchNorm2d, activation: str, *, pools: bool = False) -> Tensor:
    """activation(norm(x)), of its 2×2 max-pool where it ``pools``: by these kernels on a GPU, else by torch's."""
    if takes(x, norm) and norm.training and torch.is_grad_enabled():
        arguments = (x, norm.weight, norm.bias, norm, activation, pools)
        return cast(Tensor, PooledNormAct.apply(*arguments))  # type: ignore[no-untyped-call]
    if takes(x, norm) and not norm.training and not torch.is_grad_enabled():
        return evaluated(x, norm, activation, pools=pools)
    x = norm(F.max_pool2d(x, 2) if pools else x)
    return F.gelu(x) if activation == "gelu" else F.relu(x)


def evaluated(x: Tensor, norm: nn.BatchNorm2d, activation: str, *, pools: bool) -> Tensor:
    """The same with running statistics, by one kernel."""
    rows, channels, height, width = x.shape
    size = (rows, channels, height // 2, width // 2) if pools else (rows, channels, height, width)
    out, text = channels_last(size, x, x.dtype), source(x.dtype, channels, activation)
    tensors = (x, norm.running_mean, norm.running_var, norm.weight, norm.bias, out)
    items = out.numel() // 8
    launch(text, "evaluated", -(-items // THREADS), (*tensors, items, height, width, int(pools), norm.eps))
    return out


def takes(x: Tensor, norm: nn.BatchNorm2d) -> bool:
    """Whether the kernels can take this layer and these numbers now."""
    kept = norm.affine and norm.track_running_stats and norm.momentum is not None
    channels, known = norm.num_features, x.dtype in FORMATS and x.numel() < 2**31 and min(x.shape[2:]) >= 2
    fits = channels <= MOST_CHANNELS and channels % 32 == 0 and THREADS % (channels // 8) == 0
    return usable(x.device) and kept and known and fits and x.is_contiguous(memory_format=torch.channels_last)


def blocks_over(places: int, channels: int) -> int:
    """Blocks for sums over so many places: four of them for a thread of eight channels where there are many."""
    return max(1, min(MOST_BLOCKS, -(-places * channels // 8 // THREADS // 4)))
