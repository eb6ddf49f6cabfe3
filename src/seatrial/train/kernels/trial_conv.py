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

from seatrial.train.kernels.filters import SPARE
from seatrial.train.kernels.nvrtc import EIGHT, REALS, launch
from seatrial.train.kernels.trial_parts import blocks_for, sum_parts

#: Images that a block has in shared memory at a time: four of its eight warps work on each.
TOGETHER = 2
#: Tiles of 16 pixels that a warp multiplies with 32 channels at a time: 64 sums a thread.
MOST_TILES = 4

SOURCE = """
constexpr int SH = H + 2 * P, SW = W + 2 * P, OH = SH - K + 1, OW = SW - K + 1, PH = OH / 2, PW = OW / 2;
constexpr int PLACES = PH * PW, Q = K - 1 - P, GH = OH + 2 * Q, GW = OW + 2 * Q;  // of a gradient with its zeros around
constexpr int A = I + SPARE, G = C + SPARE, ROW = K * K * I + SPARE, SIZE = C * K * K * I;
#ifndef ON_CPU
// Four 8×8 matrices; each lane names a row. Of each matrix it gets two neighbours: of a row, or transposed of a column.
__device__ void load_rows(unsigned* parts, const Real* row) {
  unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3]) : "r"(address) : "memory");
}
__device__ void load_matrices(unsigned* parts, const Real* row) {
  unsigned address = (unsigned)__cvta_generic_to_shared(row);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3]) : "r"(address) : "memory");
}
// sums [16, 8] += a [16, 16] × b [16, 8]
__device__ void multiply(float* sums, const unsigned* a, const unsigned* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
struct alignas(16) Floats { float at[4]; };
struct alignas(8) Four { Real at[4]; };

// A trial's filters [C][K * K][I], rounded, into shared memory.
__device__ void load_filters(Real* weights, const float* filters) {
#pragma unroll 4
  for (int i = threadIdx.x; i < SIZE / 4; i += blockDim.x) {
    Floats from = ((const Floats*)filters)[i];
    Four rounded;
    for (int k = 0; k < 4; k++) rounded.at[k] = real(from.at[k]);
    *(Four*)(weights + i * 4 / (K * K * I) * ROW + i * 4 % (K * K * I)) = rounded;
  }
}

// An image [H][W][I] with its padding into shared memory; threads first, first + step, …
__device__ void load_image(Real* inputs, const Real* x, bool there, int first, int step) {
#pragma unroll 4
  for (int i = first; i < SH * SW * (I / 8); i += step) {
    int group = i % (I / 8), place = i / (I / 8), y = place / SW - P, z = place % SW - P;
    Eight value = {};
    if (there && y >= 0 && y < H && z >= 0 && z < W) value = ((const Eight*)x)[(y * W + z) * (I / 8) + group];
    *(Eight*)(inputs + place * A + group * 8) = value;
  }
}

__device__ void clear(Real* from, int eights) {
  for (int i = threadIdx.x; i < eights; i += blockDim.x) ((Eight*)from)[i] = Eight{};
}

// Puts a pooled image's gradients where they belong; returns the sum of those of this thread's channel.
__device__ float spread(
    Real* gradients, const Real* grad, const signed char* which, int wide, int border, int first, int step) {
  int lanes = step / C, c = first / lanes;
  float total = 0.0f;
  for (int place = first % lanes; place < PLACES; place += lanes) {
    int k = which[c * PLACES + place];
    Real value = grad[c * PLACES + place];
    if (k == 4) continue;
    int y = place / PW * 2 + k / 2 + border, z = place % PW * 2 + k % 2 + border;
    gradients[(y * wide + z) * G + c] = value;
    total += number(value);
  }
  return total;
}
"""
POOL = """
// out and which [T][B][C][PH * PW]: 0 to 3 in reading order, or 4: none was above 0.
extern "C" __global__ void __launch_bounds__(256, 2) convolve_pool(
    const Real* x, const float* filters, const float* bias, Real* out, signed char* which, int B) {
  extern __shared__ float shared[];
  constexpr int ACROSS = C / 32, DOWN = 4 / ACROSS, TILES = (OH * OW + 15) / 16;
  constexpr int EACH = (TILES + DOWN - 1) / DOWN < MOST ? (TILES + DOWN - 1) / DOWN : MOST;
  Real *weights = (Real*)shared, *inputs = weights + C * ROW, *outputs = inputs + 2 * SH * SW * A;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, image = warp / 4, down = warp % 4 / ACROSS;
  int across = warp % 4 % ACROSS * 32;
  long long trial = blockIdx.y;
  load_filters(weights, filters + trial * SIZE);
  const Real* columns = weights + (across + lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 8;
  for (int first = blockIdx.x * 2; first < B; first += gridDim.x * 2) {
    __syncthreads();
    int own = threadIdx.x / 128, n = first + own;
    load_image(inputs + own * SH * SW * A, x + (trial * B + n) * H * W * I, n < B, threadIdx.x % 128, 128);
    __syncthreads();
    for (int begin = 0; begin < TILES; begin += DOWN * EACH) {
      float sums[EACH][4][4] = {};
      const Real* rows[EACH];
#pragma unroll
      for (int m = 0; m < EACH; m++) {
        int pixel = (begin + down * EACH + m) * 16 + lane % 16;
        if (pixel >= OH * OW) pixel = 0;
        rows[m] = inputs + (image * SH * SW + pixel / OW * SW + pixel % OW) * A + lane / 16 * 8;
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
            load_rows(a, rows[m] + (tap / K * SW + tap % K) * A + k);
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
            Real* at = outputs + (image * OH * OW + pixel) * G + across + q * 8 + lane % 4 * 2;
            *(unsigned*)at = real(sums[m][q][r * 2]) | (unsigned)real(sums[m][q][r * 2 + 1]) << 16;
          }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * C * PLACES; i += blockDim.x) {
      int which_image = i / (C * PLACES), c = i / PLACES % C, place = i % PLACES;
      if (first + which_image >= B) break;
      const Real* corner = outputs + (which_image * OH * OW + place / PW * 2 * OW + place % PW * 2) * G + c;
      float largest = 0.0f, plus = bias[trial * C + c];
      signed char mark = 4;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float value = number(corner[(k / 2 * OW + k % 2) * G]) + plus;
        if (!(value <= largest)) {  // a NaN goes on
          largest = value;
          mark = k;
        }
      }
      long long at = (trial * B + first) * C * PLACES + i;
      out[at] = real(largest);
      which[at] = mark;
    }
  }
}
"""
BACK = """
// dx [T][B][H][W][I]
extern "C" __global__ void __launch_bounds__(256, 2) convolve_back(
    const Real* grad, const signed char* which, const float* filters, Real* dx, int B) {
  extern __shared__ float shared[];
  constexpr int ACROSS = I / 32, DOWN = 4 / ACROSS, TILES = (H * W + 15) / 16;
  constexpr int EACH = (TILES + DOWN - 1) / DOWN < MOST ? (TILES + DOWN - 1) / DOWN : MOST;
  Real *weights = (Real*)shared, *gradients = weights + C * ROW;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, image = warp / 4, down = warp % 4 / ACROSS;
  int across = warp % 4 % ACROSS * 32;
  long long trial = blockIdx.y;
  load_filters(weights, filters + trial * SIZE);
  const Real* columns = weights + (lane / 8 % 2 * 8 + lane % 8) * ROW + across + lane / 16 * 8;
  for (int first = blockIdx.x * 2; first < B; first += gridDim.x * 2) {
    __syncthreads();
    clear(gradients, 2 * GH * GW * (G / 8));
    __syncthreads();
    int own = threadIdx.x / 128;
    long long flat = (trial * B + first + own) * C * PLACES;
    if (first + own < B)
      spread(gradients + own * GH * GW * G, grad + flat, which + flat, GW, Q, threadIdx.x % 128, 128);
    __syncthreads();
    for (int begin = 0; begin < TILES; begin += DOWN * EACH) {
      float sums[EACH][4][4] = {};
      const Real* rows[EACH];
#pragma unroll
      for (int m = 0; m < EACH; m++) {
        int pixel = (begin + down * EACH + m) * 16 + lane % 16;
        if (pixel >= H * W) pixel = 0;
        int place = (pixel / W + K - 1) * GW + pixel % W + K - 1;
        rows[m] = gradients + (image * GH * GW + place) * G + lane / 16 * 8;
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
            load_rows(a, rows[m] - (tap / K * GW + tap % K) * G + k);
#pragma unroll
            for (int q = 0; q < 4; q++) multiply(sums[m][q], a, b + q * 2);
          }
        }
      if (first + image >= B) continue;
#pragma unroll
      for (int m = 0; m < EACH; m++)
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            int pixel = (begin + down * EACH + m) * 16 + lane / 4 + r * 8;
            if (pixel >= H * W) continue;
            Real* at = dx + ((trial * B + first + image) * H * W + pixel) * I + across + q * 8 + lane % 4 * 2;
            *(unsigned*)at = real(sums[m][q][r * 2]) | (unsigned)real(sums[m][q][r * 2 + 1]) << 16;
          }
    }
  }
}
"""
GRADIENT = """
// parts [T][gridDim.x][SIZE + C]: of the filters as they lie, and of the bias. A warp has its tiles of 16 filters by 16
// channels for every tap.
extern "C" __global__ void __launch_bounds__(256, 2) filter_gradient(
    const Real* x, const Real* grad, const signed char* which, float* parts, int B) {
  extern __shared__ float shared[];
  constexpr int PIXELS = (OH * OW + 15) / 16 * 16, EACH = C / 16 * (I / 16) / 8;
  Real *gradients = (Real*)shared, *inputs = gradients + PIXELS * G;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  long long trial = blockIdx.y;
  float sums[EACH][K * K][8] = {}, bias = 0.0f;
  for (int n = blockIdx.x; n < B; n += gridDim.x) {
    __syncthreads();
    clear(gradients, PIXELS * (G / 8));
    load_image(inputs, x + (trial * B + n) * H * W * I, true, threadIdx.x, blockDim.x);
    __syncthreads();
    long long flat = (trial * B + n) * C * PLACES;
    bias += spread(gradients, grad + flat, which + flat, OW, 0, threadIdx.x, blockDim.x);
    __syncthreads();
    for (int begin = 0; begin < PIXELS; begin += 16) {
      int across = begin + lane / 8 % 2 * 8 + lane % 8;  // beyond the last pixel: any, times zero
      int place = across < OH * OW ? across / OW * SW + across % OW : 0;
      const Real* filter = gradients + (begin + lane / 16 * 8 + lane % 8) * G + lane / 8 % 2 * 8;
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        int tile = warp + e * 8, m = tile % (C / 16) * 16, q = tile / (C / 16) * 16;
        unsigned a[4], b[4];
        load_matrices(a, filter + m);
#pragma unroll
        for (int tap = 0; tap < K * K; tap++) {
          load_matrices(b, inputs + (place + tap / K * SW + tap % K) * A + q + lane / 16 * 8);
          multiply(sums[e][tap], a, b);
          multiply(sums[e][tap] + 4, a, b + 2);
        }
      }
    }
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
  }
  constexpr int LANES = 256 / C;
  for (int other = 1; other < LANES; other *= 2) bias += __shfl_xor_sync(0xffffffff, bias, other);
  if (threadIdx.x % LANES == 0) parts[SIZE + threadIdx.x / LANES] = bias;
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
        return f"{REALS[torch.bfloat16]}constexpr int {told};\n{EIGHT}{SOURCE}{KERNELS[name]}"

    def shared_bytes(self) -> dict[str, int]:
        """Shared memory of each kernel."""
        weights = self.filters * (self.size**2 * self.inputs + SPARE)
        image = self.wide[0] * self.wide[1] * (self.inputs + SPARE)
        rows, output = self.filters + SPARE, self.out[0] * self.out[1]
        zeros = 2 * (self.size - 1 - self.padding)
        spread = (self.out[0] + zeros) * (self.out[1] + zeros) * rows
        return {
            "convolve_pool": 2 * (weights + TOGETHER * (image + output * rows)),
            "convolve_back": 2 * (weights + TOGETHER * spread),
            "filter_gradient": 2 * (-(-output // 16) * 16 * rows + image),
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
