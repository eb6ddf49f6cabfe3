"""A first convolution of few inputs, fixed filters and a bias that learns, with its GELU.

Three channels leave Tensor Cores little to multiply, and what comes out is large: here it is written once, and
backwards computed again from the images instead of being read.
Shapes: B images, I channels in, C filters of K×K without padding, H and W pixels; channels last.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.kernels.nvrtc import EIGHT, FORMATS, GELU, THREADS, channels_last, launch, usable
from seatrial.train.kernels.sums import sum_rows

#: Blocks that sum over pixels: four for each multiprocessor of a large GPU (H200: 132).
MOST_BLOCKS = 528
#: Numbers of a filter: they lie in a thread's registers while it computes.
MOST_TAPS, MOST_FILTERS = 32, 64
#: Multiples of channels for which cuDNN 9.19 takes kernels that were made for an H200: 2000 images of 31×31 and 64
#: filters of 3×3 take 200 µs forward and 350 for the filters' gradient; with 24 channels 274 and 313, by older ones.
BY_CHANNELS = 32

TEXT = """
constexpr int TAPS = K * K * I, GROUPS = OUT / 8;

// weights [TAPS][C] in shared memory, tap (i, j, channel) in the order of a pixel's neighbours in memory
__device__ void load_filters(const float* filters, const float* bias, float* weights, float* shift) {
  for (int n = threadIdx.x; n < TAPS * C; n += blockDim.x) {
    int c = n % C, tap = n / C;
    weights[n] = filters[c * TAPS + tap];
  }
  for (int c = threadIdx.x; c < C; c += blockDim.x) shift[c] = bias[c];
  __syncthreads();
}

__device__ void convolved(
    const Real* images, const float* weights, const float* shift, int pixel, int group, int H, int W, float* sums) {
  int OW = W - K + 1, OH = H - K + 1, x = pixel % OW, y = pixel / OW % OH, image = pixel / OW / OH;
  float values[TAPS];
#pragma unroll
  for (int i = 0; i < K; i++)
#pragma unroll
    for (int j = 0; j < K * I; j++) values[i * K * I + j] = number(images[((image * H + y + i) * W + x) * I + j]);
#pragma unroll
  for (int c = 0; c < 8; c++) sums[c] = shift[group * 8 + c];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] += values[tap] * weights[tap * C + group * 8 + c];
}

// A thread for eight channels of a pixel; those beyond C are zeros. filters [C][K][K][I]
extern "C" __global__ void whitened(
    const Real* images, const float* filters, const float* bias, Eight* out, int total, int H, int W) {
  alignas(16) __shared__ float weights[TAPS * C];
  alignas(16) __shared__ float shift[C];
  load_filters(filters, bias, weights, shift);
  for (int thread = blockIdx.x * blockDim.x + threadIdx.x; thread < total; thread += gridDim.x * blockDim.x) {
    Eight result = {};
    if (thread % GROUPS < C / 8) {
      float sums[8];
      convolved(images, weights, shift, thread / GROUPS, thread % GROUPS, H, W, sums);
#pragma unroll
      for (int c = 0; c < 8; c++) result.at[c] = real(gelu(sums[c]));
    }
    out[thread] = result;
  }
}

// parts [gridDim.x][C]: sums of the gradients that come through.
extern "C" __global__ void bias_gradient(
    const Real* images, const float* filters, const float* bias, const Eight* grad, float* parts, int pixels, int H,
    int W) {
  alignas(16) __shared__ float weights[TAPS * C];
  alignas(16) __shared__ float shift[C];
  __shared__ float across[8][257];
  load_filters(filters, bias, weights, shift);
  constexpr int LANES = 256 / GROUPS;
  int group = threadIdx.x % GROUPS, lane = threadIdx.x / GROUPS;
  float totals[8] = {};
  if (lane < LANES && group < C / 8)
    for (int pixel = blockIdx.x * LANES + lane; pixel < pixels; pixel += gridDim.x * LANES) {
      Eight gradients = grad[pixel * GROUPS + group];
      float sums[8];
      convolved(images, weights, shift, pixel, group, H, W, sums);
#pragma unroll
      for (int c = 0; c < 8; c++) totals[c] += number(gradients.at[c]) * gelu_slope(sums[c]);
    }
  for (int c = 0; c < 8; c++) across[c][threadIdx.x] = totals[c];
  __syncthreads();
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    float total = 0.0f;
    for (int l = 0; l < LANES; l++) total += across[c % 8][l * GROUPS + c / 8];
    parts[blockIdx.x * C + c] = total;
  }
}
"""


def source(dtype: torch.dtype, inputs: int, filters: int, size: int) -> str:
    """The kernels' text for one layer."""
    channels = filled_up(filters)
    numbers = f"constexpr int I = {inputs}, C = {filters}, K = {size}, OUT = {channels};\n"
    return f"{FORMATS[dtype]}{numbers}{EIGHT}{GELU}{TEXT}"


class WhitenedGelu(torch.autograd.Function):
    """images [B, I, H, W] channels last, weight [C, I, K, K], bias [C] → [B, filled_up(C), H - K + 1, W - K + 1].

    In the images' type; channels beyond C are zeros. Only the bias has a gradient.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows, inputs, height, width = images.shape
        filters, _, size, _ = weight.shape
        plain = weight.permute(0, 2, 3, 1).contiguous()
        out = channels_last((rows, filled_up(filters), height - size + 1, width - size + 1), images, images.dtype)
        groups, text = out.numel() // 8, source(images.dtype, inputs, filters, size)
        blocks = min(8 * MOST_BLOCKS, -(-groups // THREADS))
        launch(text, "whitened", blocks, (images, plain, bias, out, groups, height, width))
        ctx.save_for_backward(images, plain, bias)
        ctx.text = text
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, plain, bias = ctx.saved_tensors
        if not ctx.needs_input_grad[2]:
            return None, None, None
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        pixels, filters = grad.numel() // grad.shape[1], len(bias)
        blocks = min(MOST_BLOCKS, -(-pixels * filters // 8 // THREADS))
        parts = torch.empty(blocks, filters, device=grad.device)
        launch(ctx.text, "bias_gradient", blocks, (images, plain, bias, grad, parts, pixels, *images.shape[2:]))
        return None, None, sum_rows(parts)


def whitened_gelu(images: Tensor, layer: nn.Conv2d) -> Tensor:
    """gelu(layer(images)): by these kernels on a GPU, else by torch's layers.

    The kernels fill the channels up with zeros to the next 32, for which cuDNN has faster convolutions.
    """
    if not (usable(images.device) and fits(layer, images)):
        return F.gelu(layer(images))
    return cast(Tensor, WhitenedGelu.apply(images, layer.weight, layer.bias))  # type: ignore[no-untyped-call]


def filled_up(filters: int) -> int:
    """Channels of the result for so many filters."""
    return -(-filters // BY_CHANNELS) * BY_CHANNELS


def convolved(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """The layer, whose input may have been filled up with channels of zeros."""
    more = x.shape[1] - layer.in_channels
    if not more:
        return cast(Tensor, layer(x))
    weight = F.pad(layer.weight, (0, 0, 0, 0, 0, more))
    return cast(Tensor, layer._conv_forward(x, weight, layer.bias))


def fits(layer: nn.Conv2d, images: Tensor) -> bool:
    """Whether a layer is such a convolution: fixed filters, square, no padding, filters by the eight."""
    plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.padding == (0, 0) and layer.groups == 1
    size, taps = layer.kernel_size[0], layer.kernel_size[0] ** 2 * layer.in_channels
    square = layer.kernel_size == (size, size) and layer.bias is not None and not layer.weight.requires_grad
    known = images.dtype in FORMATS and images.is_contiguous(memory_format=torch.channels_last)
    few = taps <= MOST_TAPS and layer.out_channels % 8 == 0 and layer.out_channels <= MOST_FILTERS
    return plain and square and few and known and not images.requires_grad
