"""The convolution of images with one channel, whose gradient the images themselves do not need.

One channel leaves Tensor Cores little to multiply. On an H200, with 64 images of 28×28 and 32 filters of 3×3, cuDNN
9.19 takes 10 µs forward and 31 for the filters' gradient of a step of 220 (5×5, 128 images: 20 and 40).
Here a thread computes four pixels of eight filters, and backwards a block sums up one part of an image.
Shapes: B images, H and W pixels, C filters of K×K, padded by P on each side; channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, channels_last, launch
from seatrial.train.kernels.sums import sum_rows

#: Parts of an image, each the work of one block, for the filters' gradient.
PARTS = 2
#: Bytes of shared memory that a block has without asking for more (CUDA programming guide, compute capability 9.0).
SHARED_BYTES = 48 * 1024

SOURCE = """
extern "C" __global__ void convolve(
    const float* images, const float* filters, Real* out, int total, int H, int W, int OH, int OW) {
  __shared__ float taps[K * K * C];  // [tap][filter]
  for (int i = threadIdx.x; i < K * K * C; i += blockDim.x) taps[i] = filters[i % C * K * K + i / C];
  __syncthreads();
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int group = thread % (C / 8), fours = (OW + 3) / 4, place = thread / (C / 8);
  int x = place % fours * 4, y = place / fours % OH, image = place / fours / OH;
  float sums[4][8] = {};
#pragma unroll
  for (int i = 0; i < K; i++) {
    int row = y + i - P;
    float pixels[K + 3];
#pragma unroll
    for (int j = 0; j < K + 3; j++) {
      int column = x + j - P;
      bool inside = row >= 0 && row < H && column >= 0 && column < W;
      pixels[j] = inside ? images[(image * H + row) * W + column] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < K; j++) {
      const float* tap = taps + (i * K + j) * C + group * 8;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float weight = tap[c];
#pragma unroll
        for (int p = 0; p < 4; p++) sums[p][c] += weight * pixels[p + j];
      }
    }
  }
#pragma unroll
  for (int p = 0; p < 4; p++) {
    if (x + p >= OW) break;
    Eight result;
    for (int c = 0; c < 8; c++) result.at[c] = real(sums[p][c]);
    ((Eight*)out)[((image * OH + y) * OW + x + p) * (C / 8) + group] = result;
  }
}

// Lanes are filters, warps take rows in turns; the image lies in shared memory with its padding.
extern "C" __global__ void filter_sums(
    const float* images, const Real* grad, float* parts, int H, int W, int OH, int OW) {
  extern __shared__ float shared[];
  int stride = (OW + 3) / 4 * 4 + K + 3, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int rows = (OH + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * rows, end = begin + rows < OH ? begin + rows : OH;
  for (int i = threadIdx.x; i < (rows + K - 1) * stride; i += blockDim.x) {
    int row = begin + i / stride - P, column = i % stride - P;
    bool inside = row >= 0 && row < H && column >= 0 && column < W;
    shared[i] = inside ? images[(blockIdx.x * H + row) * W + column] : 0.0f;
  }
  __syncthreads();
  float* across = shared + (rows + K - 1) * stride;
  for (int filter = lane; filter < C; filter += 32) {
    float sums[K * K] = {};
    for (int y = begin + warp; y < end; y += warps) {
      const Real* line = grad + ((long long)(blockIdx.x * OH + y) * OW) * C + filter;
      for (int x = 0; x < OW; x += 4) {
        float gradients[4];
#pragma unroll
        for (int p = 0; p < 4; p++) gradients[p] = x + p < OW ? number(line[(x + p) * C]) : 0.0f;
#pragma unroll
        for (int i = 0; i < K; i++) {
          const float* pixels = shared + (y - begin + i) * stride + x;
          float window[K + 3];
#pragma unroll
          for (int j = 0; j < K + 3; j++) window[j] = pixels[j];
#pragma unroll
          for (int j = 0; j < K; j++)
#pragma unroll
            for (int p = 0; p < 4; p++) sums[i * K + j] += gradients[p] * window[p + j];
        }
      }
    }
    for (int tap = 0; tap < K * K; tap++) across[(warp * K * K + tap) * 32 + lane] = sums[tap];
    __syncthreads();
    for (int i = threadIdx.x; i < K * K * 32; i += blockDim.x) {
      float total = 0.0f;
      for (int w = 0; w < warps; w++) total += across[w * K * K * 32 + i];
      int place = filter - lane + i % 32;
      parts[((long long)(blockIdx.x * gridDim.y + blockIdx.y) * C + place) * K * K + i / 32] = total;
    }
    __syncthreads();
  }
}
"""


def source(dtype: torch.dtype, filters: int, size: int, padding: int) -> str:
    """The kernels' text for one layer."""
    return f"{REALS[dtype]}constexpr int C = {filters}, K = {size}, P = {padding};\n{EIGHT}{SOURCE}"


class GreyConvolution(torch.autograd.Function):
    """images [B, 1, H, W] (fp32), weight [C, 1, K, K] → [B, C, H', W'] in ``dtype``."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, padding: int, dtype: torch.dtype) -> Tensor:
        rows, _, height, width = images.shape
        filters, _, size, _ = weight.shape
        out_height, out_width = height + 2 * padding - size + 1, width + 2 * padding - size + 1
        out = channels_last((rows, filters, out_height, out_width), images, dtype)
        threads = rows * out_height * -(-out_width // 4) * (filters // 8)
        text = source(dtype, filters, size, padding)
        sizes = (threads, height, width, out_height, out_width)
        launch(text, "convolve", -(-threads // THREADS), (images, weight, out, *sizes))
        ctx.save_for_backward(images)
        ctx.weight, ctx.text = weight, text
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (images,) = ctx.saved_tensors
        grad = grads[0].contiguous(memory_format=torch.channels_last)
        size = ctx.weight.shape[2]
        rows, _, out_height, out_width = grad.shape
        parts = torch.empty(rows * PARTS, ctx.weight.numel(), device=grad.device)
        sizes = (*images.shape[2:], out_height, out_width)
        shared = shared_bytes(out_height, out_width, size)
        launch(ctx.text, "filter_sums", (rows, PARTS), (images, grad, parts, *sizes), shared_bytes=shared)
        return None, sum_rows(parts).as_strided(ctx.weight.shape, ctx.weight.stride()), None, None


def shared_bytes(out_height: int, out_width: int, size: int) -> int:
    """Shared memory that ``filter_sums`` takes: a part of an image, and each warp's sums."""
    stride = -(-out_width // 4) * 4 + size + 3
    return 4 * ((-(-out_height // PARTS) + size - 1) * stride + THREADS * size**2)


def fits(layer: nn.Conv2d, images: Tensor) -> bool:
    """Whether a layer is such a convolution: square, stride 1, the same padding all around, filters by the 32."""
    if layer.in_channels != 1 or layer.out_channels % 32 or images.requires_grad or images.dtype != torch.float32:
        return False
    size, padding = layer.kernel_size[0], layer.padding[0]
    square = layer.kernel_size == (size, size) and layer.padding == (padding, padding) and layer.padding_mode == "zeros"
    room = shared_bytes(images.shape[2] + 2 * int(padding), images.shape[3] + 2 * int(padding), size) <= SHARED_BYTES
    return square and room and size <= 7 and layer.stride == (1, 1) and layer.dilation == (1, 1)
