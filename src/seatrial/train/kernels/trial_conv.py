"""The second layers of several trials at once, on Tensor Cores in bf16: convolution, bias, ReLU, 2×2 max-pool, flat.

cuDNN has no batch of convolutions with a filter set each but grouped ones. Here a block keeps a trial's filters in
shared memory and takes its images in turns; the convolution's output and its gradient never leave shared memory.
Shapes: T trials, B images of each, I channels in, C filters of K×K, padded by P on each side; H and W pixels, OH and
OW of the convolution, PH and PW of the pooled output; channels last, but the output is flat as [C, PH, PW].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels.filter_gradients import SPARE
from seatrial.train.kernels.nvrtc import EIGHT, REALS, launch
from seatrial.train.kernels.tensor_cores import COPIES, TENSOR_CORES
from seatrial.train.kernels.trial_parts import blocks_for, sum_parts

#: Images that a block has in shared memory at a time: four of its eight warps work on each.
TOGETHER = 2
#: Tiles of 16 pixels that a warp multiplies with 32 channels at a time: 64 sums a thread.
MOST_TILES = 4

SOURCE = """
constexpr int SH = H + 2 * P, SW = W + 2 * P, OH = SH - K + 1, OW = SW - K + 1, PH = OH / 2, PW = OW / 2;
constexpr int PLACES = PH * PW, Q = K - 1 - P, GH = OH + 2 * Q, GW = OW + 2 * Q;  // of a gradient with its zeros around
constexpr int A = I + SPARE, G = C + SPARE, ROW = K * K * I + SPARE, SIZE = C * K * K * I, CHUNKS = C * PLACES / 8;
// A row of pixels in shared memory has some elements more: eight outputs of two rows then meet in no bank either.
constexpr int ROW_A = SW * A + (8 - A / 8 * (K - 1) % 8) % 8 * 8, ROW_G = GW * G + (8 - G / 8 * (K - 1) % 8) % 8 * 8;
#ifndef ON_CPU
// The 128 threads that work on one image wait for each other.
__device__ void meet() { asm volatile("bar.sync %0, 128;" : : "r"(threadIdx.x / 128 + 1) : "memory"); }
#else
static void meet() { __syncthreads(); }
#endif
struct alignas(16) Floats { float at[4]; };
struct alignas(8) Pairs { unsigned at[2]; };
struct alignas(16) Bytes { int at[4]; };

// A trial's filters [C][K * K][I], rounded, into shared memory.
__device__ void load_filters(Real* weights, const float* filters) {
#pragma unroll 4
  for (int i = threadIdx.x; i < SIZE / 4; i += blockDim.x) {
    Floats from = ((const Floats*)filters)[i];
    Pairs rounded = {{pair(from.at[0], from.at[1]), pair(from.at[2], from.at[3])}};
    *(Pairs*)(weights + i * 4 / (K * K * I) * ROW + i * 4 % (K * K * I)) = rounded;
  }
}

// Begins to copy an image [H][W][I] with its padding into shared memory; threads first, first + step, …
__device__ void load_image(Real* inputs, const Real* x, bool there, int first, int step) {
#pragma unroll 4
  for (int i = first; i < SH * SW * (I / 8); i += step) {
    int group = i % (I / 8), place = i / (I / 8), y = place / SW - P, z = place % SW - P;
    bool inside = there && y >= 0 && y < H && z >= 0 && z < W;
    const Real* from = x + (inside ? ((y * W + z) * I + group * 8) : 0);
    copy(inputs + place / SW * ROW_A + place % SW * A + group * 8, from, inside);
  }
}

__device__ void clear(Real* from, int eights, int first, int step) {
  for (int i = first; i < eights; i += step) ((Eight*)from)[i] = Eight{};
}

// Puts eight of a pooled image's gradients where they belong.
__device__ void spread(Real* gradients, Eight values, Choices marks, int chunk, int row, int border) {
#pragma unroll
  for (int k = 0; k < 8; k++) {
    int i = chunk * 8 + k, c = i / PLACES, place = i % PLACES, mark = marks.at[k];
    int y = place / PW * 2 + mark / 2 + border, z = place % PW * 2 + mark % 2 + border;
    if (mark != 4) gradients[y * row + z * G + c] = values.at[k];
  }
}
"""
POOL = """
// out and which [T][B][C][PH * PW]: 0 to 3 in reading order, or 4: none was above 0.
extern "C" __global__ void __launch_bounds__(256, 2) convolve_pool(
    const Real* x, const float* filters, const float* bias, Real* out, signed char* which, int B) {
  extern __shared__ float shared[];
  constexpr int ACROSS = C / 32, DOWN = 4 / ACROSS, TILES = (OH * OW + 15) / 16;
  constexpr int EACH = (TILES + DOWN - 1) / DOWN < MOST ? (TILES + DOWN - 1) / DOWN : MOST;
  constexpr int HALF = SH * ROW_A + OH * OW * G + C * PLACES + C * PLACES / 2;  // of one image, in Reals
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / 4, own = threadIdx.x % 128;
  int down = warp % 4 / ACROSS, across = warp % 4 % ACROSS * 32;
  Real *weights = (Real*)shared, *inputs = weights + C * ROW + half * HALF, *outputs = inputs + SH * ROW_A;
  Real* pooled = outputs + OH * OW * G;
  signed char* marks = (signed char*)(pooled + C * PLACES);
  long long trial = blockIdx.y;
  x += trial * B * H * W * I;
  int n = blockIdx.x * 2 + half;
  load_image(inputs, n < B ? x + (long long)n * H * W * I : x, n < B, own, 128);
  load_filters(weights, filters + trial * SIZE);
  __syncthreads();
  const Real* columns = weights + (across + lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 8;
  for (int first = blockIdx.x * 2; first < B; first += gridDim.x * 2, n += gridDim.x * 2) {
    copied();
    meet();
    for (int begin = 0; begin < TILES; begin += DOWN * EACH) {
      float sums[EACH][4][4] = {};
      const Real* rows[EACH];
#pragma unroll
      for (int m = 0; m < EACH; m++) {
        int pixel = (begin + down * EACH + m) * 16 + lane % 16;
        if (pixel >= OH * OW) pixel = 0;
        rows[m] = inputs + pixel / OW * ROW_A + pixel % OW * A + lane / 16 * 8;
      }
#pragma unroll
      for (int tap = 0; tap < K * K; tap++)
#pragma unroll
        for (int k = 0; k < I; k += 16) {
          unsigned b[8];
          load_rows(b, columns + tap * I + k);
          load_rows(b + 4, columns + 16 * ROW + tap * I + k);
#pragma unroll
          for (int m = 0; m < EACH; m++) {
            unsigned a[4];
            load_rows(a, rows[m] + tap / K * ROW_A + tap % K * A + k);
#pragma unroll
            for (int q = 0; q < 4; q++) multiply(sums[m][q], a, b + q * 2);
          }
        }
#pragma unroll
      for (int m = 0; m < EACH; m++)
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            int pixel = (begin + down * EACH + m) * 16 + lane / 4 + r * 8;
            if (pixel >= OH * OW) continue;
            *(unsigned*)(outputs + pixel * G + across + q * 8 + lane % 4 * 2) =
                pair(sums[m][q][r * 2], sums[m][q][r * 2 + 1]);
          }
    }
    meet();
    int next = n + gridDim.x * 2;
    if (next < B) load_image(inputs, x + (long long)next * H * W * I, true, own, 128);
    for (int i = own; i < C / 2 * PLACES; i += 128) {
      int c = i % (C / 2) * 2, place = i / (C / 2);
      const Real* corner = outputs + (place / PW * 2 * OW + place % PW * 2) * G + c;
      unsigned four[4];
#pragma unroll
      for (int k = 0; k < 4; k++) four[k] = *(const unsigned*)(corner + (k / 2 * OW + k % 2) * G);
#pragma unroll
      for (int side = 0; side < 2; side++) {
        float largest = 0.0f, plus = bias[trial * C + c + side];
        signed char mark = 4;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          float value = number((Real)(side ? four[k] >> 16 : four[k] & 0xffff)) + plus;
          if (!(value <= largest)) {  // a NaN goes on
            largest = value;
            mark = k;
          }
        }
        pooled[(c + side) * PLACES + place] = (Real)pair(largest, 0.0f);
        marks[(c + side) * PLACES + place] = mark;
      }
    }
    meet();
    if (n >= B) continue;
    long long flat = (trial * B + n) * C * PLACES;
    for (int i = own; i < C * PLACES / 8; i += 128) ((Eight*)(out + flat))[i] = ((const Eight*)pooled)[i];
    for (int i = own; i < C * PLACES / 16; i += 128) ((Bytes*)(which + flat))[i] = ((const Bytes*)marks)[i];
  }
}
"""
BACK = """
// dx [T][B][H][W][I]
extern "C" __global__ void __launch_bounds__(256, 2) convolve_back(
    const Real* grad, const signed char* which, const float* filters, Real* dx, int B) {
  extern __shared__ float shared[];
  constexpr int ACROSS = I / 32, DOWN = 4 / ACROSS, TILES = (H * W + 15) / 16, MINE = (CHUNKS + 127) / 128;
  constexpr int EACH = (TILES + DOWN - 1) / DOWN < MOST ? (TILES + DOWN - 1) / DOWN : MOST;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp / 4, own = threadIdx.x % 128;
  int down = warp % 4 / ACROSS, across = warp % 4 % ACROSS * 32;
  Real *weights = (Real*)shared, *gradients = weights + C * ROW + half * GH * ROW_G;
  long long trial = blockIdx.y;
  int n = blockIdx.x * 2 + half;
  Eight values[MINE];
  Choices marks[MINE];
  auto take = [&](int image) {  // the next image's gradients, while the one before is computed
    long long flat = (trial * B + image) * CHUNKS;
#pragma unroll
    for (int e = 0; e < MINE; e++) {
      int chunk = own + e * 128;
      if (image >= B || chunk >= CHUNKS) continue;
      values[e] = ((const Eight*)grad)[flat + chunk];
      marks[e] = ((const Choices*)which)[flat + chunk];
    }
  };
  take(n);
  load_filters(weights, filters + trial * SIZE);
  __syncthreads();
  const Real* columns = weights + (lane / 8 % 2 * 8 + lane % 8) * ROW + across + lane / 16 * 8;
  for (int first = blockIdx.x * 2; first < B; first += gridDim.x * 2, n += gridDim.x * 2) {
    clear(gradients, GH * ROW_G / 8, own, 128);
    meet();
#pragma unroll
    for (int e = 0; e < MINE; e++)
      if (n < B && own + e * 128 < CHUNKS) spread(gradients, values[e], marks[e], own + e * 128, ROW_G, Q);
    take(n + gridDim.x * 2);
    meet();
    for (int begin = 0; begin < TILES; begin += DOWN * EACH) {
      float sums[EACH][4][4] = {};
      const Real* rows[EACH];
#pragma unroll
      for (int m = 0; m < EACH; m++) {
        int pixel = (begin + down * EACH + m) * 16 + lane % 16;
        if (pixel >= H * W) pixel = 0;
        rows[m] = gradients + (pixel / W + K - 1) * ROW_G + (pixel % W + K - 1) * G + lane / 16 * 8;
      }
#pragma unroll
      for (int tap = 0; tap < K * K; tap++)
#pragma unroll
        for (int k = 0; k < C; k += 16) {
          unsigned b[8];
          load_matrices(b, columns + k * ROW + tap * I);
          load_matrices(b + 4, columns + k * ROW + tap * I + 16);
#pragma unroll
          for (int m = 0; m < EACH; m++) {
            unsigned a[4];
            load_rows(a, rows[m] - tap / K * ROW_G - tap % K * G + k);
#pragma unroll
            for (int q = 0; q < 4; q++) multiply(sums[m][q], a, b + q * 2);
          }
        }
      if (n >= B) continue;
#pragma unroll
      for (int m = 0; m < EACH; m++)
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            int pixel = (begin + down * EACH + m) * 16 + lane / 4 + r * 8;
            if (pixel >= H * W) continue;
            Real* at = dx + ((trial * B + n) * H * W + pixel) * I + across + q * 8 + lane % 4 * 2;
            *(unsigned*)at = pair(sums[m][q][r * 2], sums[m][q][r * 2 + 1]);
          }
    }
    meet();
  }
}
"""
GRADIENT = """
// parts [T][gridDim.x][SIZE + C]: of the filters as they lie, and of the bias. A warp has its tiles of 16 filters by 16
// channels for every tap. One image is multiplied while the next one comes.
extern "C" __global__ void __launch_bounds__(256, 2) filter_gradient(
    const Real* x, const Real* grad, const signed char* which, float* parts, int B) {
  extern __shared__ float shared[];
  constexpr int PIXELS = (OH * OW + 15) / 16 * 16, EACH = C / 16 * (I / 16) / 8, MINE = (CHUNKS + 255) / 256;
  constexpr int BUFFER = PIXELS * G + SH * ROW_A;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = threadIdx.x;
  long long trial = blockIdx.y;
  float sums[EACH][K * K][8] = {}, bias[EACH][4] = {};
  const unsigned ones[2] = {0x3f803f80, 0x3f803f80};
  Eight values[MINE];
  Choices marks[MINE];
  auto begin_image = [&](int image, Real* buffer) {
    load_image(buffer + PIXELS * G, x + (trial * B + image) * H * W * I, true, own, 256);
#pragma unroll
    for (int e = 0; e < MINE; e++) {
      int chunk = own + e * 256;
      if (chunk >= CHUNKS) continue;
      values[e] = ((const Eight*)grad)[(trial * B + image) * CHUNKS + chunk];
      marks[e] = ((const Choices*)which)[(trial * B + image) * CHUNKS + chunk];
    }
    clear(buffer, PIXELS * (G / 8), own, 256);
  };
  auto end_image = [&](Real* buffer) {
#pragma unroll
    for (int e = 0; e < MINE; e++)
      if (own + e * 256 < CHUNKS) spread(buffer, values[e], marks[e], own + e * 256, OW * G, 0);
    copied();
  };
  Real *now = (Real*)shared, *later = now + BUFFER;
  begin_image(blockIdx.x, now);
  __syncthreads();
  end_image(now);
  __syncthreads();
  for (int n = blockIdx.x; n < B; n += gridDim.x) {
    bool more = n + gridDim.x < B;
    if (more) begin_image(n + gridDim.x, later);
    const Real *gradients = now, *inputs = now + PIXELS * G;
    for (int begin = 0; begin < PIXELS; begin += 16) {
      int across = begin + lane / 8 % 2 * 8 + lane % 8;  // beyond the last pixel: any, times zero
      int place = across < OH * OW ? across / OW * ROW_A + across % OW * A : 0;
      const Real* filter = gradients + (begin + lane / 16 * 8 + lane % 8) * G + lane / 8 % 2 * 8;
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        int tile = warp + e * 8, m = tile % (C / 16) * 16, q = tile / (C / 16) * 16;
        unsigned a[4], b[4];
        load_matrices(a, filter + m);
        if (q == 0) multiply(bias[e], a, ones);
#pragma unroll
        for (int tap = 0; tap < K * K; tap++) {
          load_matrices(b, inputs + place + tap / K * ROW_A + tap % K * A + q + lane / 16 * 8);
          multiply(sums[e][tap], a, b);
          multiply(sums[e][tap] + 4, a, b + 2);
        }
      }
    }
    __syncthreads();
    if (more) end_image(later);
    __syncthreads();
    Real* before = now;
    now = later;
    later = before;
  }
  parts += (trial * gridDim.x + blockIdx.x) * (SIZE + C);
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int tile = warp + e * 8, m = tile % (C / 16) * 16 + lane / 4, q = tile / (C / 16) * 16 + lane % 4 * 2;
#pragma unroll
    for (int tap = 0; tap < K * K; tap++)
#pragma unroll
      for (int k = 0; k < 8; k++) {
        int c = m + k / 2 % 2 * 8, i = q + k / 4 * 8 + k % 2;
        parts[(c * K * K + tap) * I + i] = sums[e][tap][k];
      }
    if (q == 0) {
      parts[SIZE + m] = bias[e][0];
      parts[SIZE + m + 8] = bias[e][2];
    }
  }
}
"""
#: Kernel → its text: compiled side by side, for each takes a second.
KERNELS = {"convolve_pool": POOL, "convolve_back": BACK, "filter_gradient": GRADIENT}


class Layer:
    """Sizes of one such layer: filters [C, I, K, K] on [H, W, I]."""

    def __init__(self, inputs: int, filters: int, size: int, padding: int, height: int, width: int) -> None:
        self.inputs, self.filters, self.size, self.padding = inputs, filters, size, padding
        self.height, self.width = height, width
        self.wide = (height + 2 * padding, width + 2 * padding)
        self.out = (self.wide[0] - size + 1, self.wide[1] - size + 1)
        self.pooled = self.out[0] // 2 * (self.out[1] // 2)

    def source(self, name: str) -> str:
        """A kernel's text."""
        numbers = {"I": self.inputs, "C": self.filters, "K": self.size, "P": self.padding, "H": self.height}
        numbers |= {"W": self.width, "SPARE": SPARE, "MOST": MOST_TILES}
        told = ", ".join(f"{name} = {number}" for name, number in numbers.items())
        return f"{REALS[torch.bfloat16]}constexpr int {told};\n{EIGHT}{TENSOR_CORES}{COPIES}{SOURCE}{KERNELS[name]}"

    def shared_bytes(self) -> dict[str, int]:
        """Shared memory of each kernel."""
        channels, rows, size = self.inputs + SPARE, self.filters + SPARE, self.size
        weights = self.filters * (size**2 * self.inputs + SPARE)
        image = self.wide[0] * _pitch(self.wide[1], channels, size)
        output, pooled = self.out[0] * self.out[1], self.filters * self.pooled
        zeros = 2 * (size - 1 - self.padding)
        spread = (self.out[0] + zeros) * _pitch(self.out[1] + zeros, rows, size)
        return {
            "convolve_pool": 2 * (weights + TOGETHER * (image + output * rows + pooled + pooled // 2)),
            "convolve_back": 2 * (weights + TOGETHER * spread),
            "filter_gradient": 2 * 2 * (-(-output // 16) * 16 * rows + image),
        }

    def unfit(self, most_shared_bytes: int) -> str | None:
        """Why the kernels do not take this layer, or None."""
        if self.inputs not in (32, 64, 128) or self.filters not in (32, 64, 128):
            return f"{self.inputs} channels and {self.filters} filters, not 32, 64 or 128"
        if self.filters // 16 * (self.inputs // 16) % 8:
            return f"{self.inputs} channels and {self.filters} filters make less than eight tiles"
        if not 0 <= self.padding < self.size or min(self.out) < 2:
            return "its padding or the size of the images"
        if (needed := max(self.shared_bytes().values())) > most_shared_bytes:
            return f"{needed} bytes of shared memory, of {most_shared_bytes}"
        return None

    def launch(self, name: str, trials: int, rows: int, arguments: tuple[Any, ...]) -> int:
        """Queue a kernel over so many images of each trial; the blocks that share them out."""
        together = 1 if name == "filter_gradient" else TOGETHER
        blocks = blocks_for(trials, -(-rows // together))
        launch(self.source(name), name, (blocks, trials), arguments, shared_bytes=self.shared_bytes()[name])
        return blocks


def _pitch(pixels: int, channels: int, size: int) -> int:
    """Elements of a row of pixels in shared memory: ROW_A and ROW_G of the source."""
    return pixels * channels + (8 - channels // 8 * (size - 1) % 8) % 8 * 8


def convolve_pool(layer: Layer, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """([T, B, C·PH·PW] in bf16, which of each four it was) of x [T, B, H, W, I] (bf16)."""
    trials, rows = x.shape[:2]
    out = torch.empty(trials, rows, layer.filters * layer.pooled, dtype=x.dtype, device=x.device)
    which = torch.empty(out.shape, dtype=torch.int8, device=x.device)
    layer.launch("convolve_pool", trials, rows, (x, weight, bias, out, which, rows))
    return out, which


class ConvolvePool(torch.autograd.Function):
    """x [T, B, H, W, I] (bf16), weight [T, C, I, K, K] (fp32, channels last), bias [T, C] → [T, B, C·PH·PW]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: Layer) -> Tensor:
        out, which = convolve_pool(layer, x, weight, bias)
        ctx.save_for_backward(x, weight, which)
        ctx.layer = layer
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, which = ctx.saved_tensors
        layer, grad = ctx.layer, grads[0].contiguous()
        (trials, rows), dx = x.shape[:2], torch.empty_like(x)
        layer.launch("convolve_back", trials, rows, (grad, which, weight, dx, rows))
        elements = weight[0].numel()
        blocks = blocks_for(trials, rows)
        parts = torch.empty(trials, blocks, elements + layer.filters, device=x.device)
        layer.launch("filter_gradient", trials, rows, (x, grad, which, parts, rows))
        of_weight, of_bias = sum_parts(parts, elements)
        return dx, of_weight.as_strided(weight.shape, weight.stride()), of_bias, None
