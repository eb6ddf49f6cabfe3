"""The gradient of a small convolution's filters on Tensor Cores, in bf16.

It sums over all pixels of a batch, which cuDNN 9.19 shares out among few multiprocessors when there are few filters: on
an H200 64 filters of 32×3×3 and 64 images of 13×13 take 20 µs, copy to fp32 included; here 12, sum of parts included.
Here a block takes some images and one row of the filters' taps, and multiplies by each tap's pixels in shared memory.
Shapes: B images, I channels in, C filters of K×K, padded by P on each side; H and W pixels, OH and OW of the output;
channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.kernels.nvrtc import EIGHT, REALS, launch
from seatrial.train.kernels.sums import sum_rows
from seatrial.train.kernels.tensor_cores import TENSOR_CORES

#: Blocks that share out the images, times rows of taps: about two for each multiprocessor of an H200 (132).
MOST_BLOCKS = 264
#: Tiles of 16 filters by 16 channels in a row of taps. With more (64 filters of 32×5×5: 40) cuDNN is as fast or faster.
MOST_TILES = 24
#: Shared memory that a block has without asking for more (CUDA programming guide).
SHARED_BYTES = 48 * 1024
#: Elements between two pixels in shared memory beyond the channels: then no two rows of a matrix meet in one bank.
SPARE = 8

SOURCE = """
// parts [gridDim.x][C][K * K][I]. A unit is a part of an image, at most R rows of it.
extern "C" __global__ void filter_gradient(
    const Real* x, const Real* grad, float* parts, int units, int divisions, int R, int H, int W, int OH, int OW) {
  constexpr int A = C + SPARE, B = I + SPARE, TILES = C / 16 * (I / 16), EACH = TILES / 8;
  extern __shared__ float shared[];
  int pixels = (R * OW + 15) / 16 * 16, wide = OW + K - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Real *gradients = (Real*)shared, *inputs = gradients + pixels * A;
  float sums[EACH][K][8] = {};
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    int image = unit / divisions, begin = unit % divisions * R, rows = OH - begin < R ? OH - begin : R;
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < pixels * (C / 8); i += blockDim.x) {
      int pixel = i / (C / 8), group = i % (C / 8);
      Eight value = {};
      if (pixel < rows * OW) value = ((const Eight*)grad)[((image * OH + begin) * OW + pixel) * (C / 8) + group];
      *(Eight*)(gradients + pixel * A + group * 8) = value;
    }
#pragma unroll 4
    for (int i = threadIdx.x; i < R * wide * (I / 8); i += blockDim.x) {
      int place = i / (I / 8), group = i % (I / 8);
      int row = begin + place / wide + blockIdx.y - P, column = place % wide - P;
      Eight value = {};
      if (row >= 0 && row < H && column >= 0 && column < W)
        value = ((const Eight*)x)[((image * H + row) * W + column) * (I / 8) + group];
      *(Eight*)(inputs + place * B + group * 8) = value;
    }
    __syncthreads();
    for (int first = 0; first < pixels; first += 16) {
      int across = first + lane / 8 % 2 * 8 + lane % 8;  // this lane's pixel among the inputs; beyond the last: any
      int place = across < R * OW ? across / OW * wide + across % OW : 0;
      const Real* filter = gradients + (first + lane / 16 * 8 + lane % 8) * A + lane / 8 % 2 * 8;
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        int tile = warp + e * 8, m = tile % (C / 16) * 16, n = tile / (C / 16) * 16;
        unsigned a[4], b[4];
        load_matrices(a, filter + m);
#pragma unroll
        for (int j = 0; j < K; j++) {
          load_matrices(b, inputs + (place + j) * B + n + lane / 16 * 8);
          multiply(sums[e][j], a, b);
          multiply(sums[e][j] + 4, a, b + 2);
        }
      }
    }
  }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int tile = warp + e * 8, m = tile % (C / 16) * 16 + lane / 4, n = tile / (C / 16) * 16 + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < K; j++)
#pragma unroll
      for (int k = 0; k < 8; k++) {
        int c = m + k / 2 % 2 * 8, i = n + k / 4 * 8 + k % 2;
        parts[((blockIdx.x * C + c) * K * K + blockIdx.y * K + j) * I + i] = sums[e][j][k];
      }
  }
}
"""


class Convolution(torch.autograd.Function):
    """x [B, I, H, W] (bf16), weight [C, I, K, K] (fp32) → [B, C, OH, OW]: cuDNN's, but for the filters' gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int) -> Tensor:
        x, weight = x.contiguous(memory_format=torch.channels_last), weight.to(x.dtype)
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return nn.functional.conv2d(x, weight, padding=padding).contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        padding, one = [ctx.padding] * 2, [1, 1]
        wanted = [ctx.needs_input_grad[0], False, False]
        backward = torch.ops.aten.convolution_backward
        dx, _, _ = backward(grad, x, weight, None, one, padding, one, False, [0, 0], 1, wanted)
        return dx, filter_gradient(x, grad, weight.shape[2], ctx.padding), None


def filter_gradient(x: Tensor, grad: Tensor, size: int, padding: int) -> Tensor:
    """[C, I, K, K] (fp32, channels last) from x [B, I, H, W] and grad [B, C, OH, OW]."""
    (rows, inputs, height, width), (filters, out_height, out_width) = x.shape, grad.shape[1:]
    divisions = divided(inputs, filters, size, out_height, out_width)
    units, part = rows * divisions, -(-out_height // divisions)
    blocks = min(units, MOST_BLOCKS // size)
    parts = torch.empty(blocks, filters * size * size * inputs, device=x.device)
    sizes = (units, divisions, part, height, width, out_height, out_width)
    shared = shared_bytes(inputs, filters, size, part, out_width)
    text = source(inputs, filters, size, padding)
    launch(text, "filter_gradient", (blocks, size), (x, grad, parts, *sizes), shared_bytes=shared)
    return sum_rows(parts).view(filters, size, size, inputs).permute(0, 3, 1, 2)


def source(inputs: int, filters: int, size: int, padding: int) -> str:
    """The kernel's text for one layer."""
    numbers = f"constexpr int I = {inputs}, C = {filters}, K = {size}, P = {padding}, SPARE = {SPARE};\n"
    return f"{REALS[torch.bfloat16]}{numbers}{EIGHT}{TENSOR_CORES}{SOURCE}"


def shared_bytes(inputs: int, filters: int, size: int, rows: int, out_width: int) -> int:
    """Shared memory for so many rows of an image: their gradients, and their inputs for one row of taps."""
    pixels = -(-rows * out_width // 16) * 16
    return 2 * (pixels * (filters + SPARE) + rows * (out_width + size - 1) * (inputs + SPARE))


def divided(inputs: int, filters: int, size: int, out_height: int, out_width: int) -> int:
    """Into how many parts an image must be cut for shared memory; 0: even one row is too much."""
    for divisions in range(1, out_height + 1):
        if shared_bytes(inputs, filters, size, -(-out_height // divisions), out_width) <= SHARED_BYTES:
            return divisions
    return 0


def takes(layer: nn.Conv2d, dtype: torch.dtype) -> bool:
    """Whether a layer is such a convolution: plain, bf16, channels by the 16, few filters."""
    size, padding = layer.kernel_size[0], layer.padding[0]
    inputs, filters = layer.in_channels, layer.out_channels
    square = layer.kernel_size == (size, size) and layer.padding == (padding, padding) and layer.padding_mode == "zeros"
    plain = square and layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
    tiles = filters // 16 * (inputs // 16)
    blocks = filters % 16 == 0 and inputs % 16 == 0 and tiles > 0 and tiles % 8 == 0 and tiles * size <= MOST_TILES
    return plain and blocks and dtype == torch.bfloat16


def fits(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether ``takes`` it, and at least a row of these images has room in shared memory."""
    if not takes(layer, x.dtype):
        return False
    size, padding = layer.kernel_size[0], int(layer.padding[0])
    height, width = (pixels + 2 * padding - size + 1 for pixels in x.shape[2:])
    return divided(layer.in_channels, layer.out_channels, size, height, width) > 0
