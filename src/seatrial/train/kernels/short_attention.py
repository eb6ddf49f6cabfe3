"""Attention of packed short texts on Tensor Cores, in bf16: every token to those of its own text, no padding between.

A text has at most 128 tokens, so that queries, keys and values of a head lie in shared memory whole. A block takes one
text and as many heads of it as make eight tiles of 16 rows: eight of 16 tokens, or one of 128. A warp takes a tile of
queries; backwards also a tile of keys, for which it computes the scores again, the other way round.
Shapes: T tokens of all texts, N texts, H heads, D = 64 numbers a head; queries, keys and values [T, 3, H, D].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels import dropout
from seatrial.train.kernels.nvrtc import EIGHT, REALS, launch, usable
from seatrial.train.kernels.tensor_cores import TENSOR_CORES

#: Tokens of the longest text that the kernels take, and numbers a head.
LONGEST, HEAD = 128, 64
#: Numbers between two rows in shared memory beyond a head's: then no two rows of a matrix meet in one bank.
SPARE = 8
#: Bytes of shared memory: three matrices of 128 rows; backwards four, two numbers for each row, and each warp's sums.
FORWARD_BYTES = 3 * LONGEST * (HEAD + SPARE) * 2
BACK_BYTES = 4 * LONGEST * (HEAD + SPARE) * 2 + 2 * LONGEST * 4 + 8 * 3 * HEAD * 4

TEXT = """
constexpr int ROW = 72, MATRIX = 128 * ROW;
__device__ unsigned pair(float low, float high) { return (unsigned)real(low) | (unsigned)real(high) << 16; }

// Where this block works: a text, its tiles, a warp's head and tile.
struct Work { int begin, tokens, tiles, shared_tiles, heads, head, tile; };
__device__ Work work_of(const int* starts) {
  Work work;
  work.begin = starts[blockIdx.y];
  work.tokens = starts[blockIdx.y + 1] - work.begin;
  work.tiles = (work.tokens + 15) / 16;
  work.shared_tiles = work.tiles <= 1 ? 1 : work.tiles <= 2 ? 2 : work.tiles <= 4 ? 4 : 8;
  work.heads = 8 / work.shared_tiles;
  work.head = blockIdx.x * work.heads + (int)threadIdx.x / 32 / work.shared_tiles;
  work.tile = threadIdx.x / 32 % work.shared_tiles;
  return work;
}
__device__ bool nothing(const Work& work, int H) { return (int)blockIdx.x * work.heads >= H; }

// 128 rows of shared memory each: tile after tile of head after head; zeros behind a text's end. All loads go out at
// once: one after the other they would take as long as everything else.
template <int N>
__device__ void fetch(Real* to, const Real* const (&from)[N], const int (&strides)[N], const Work& work, int H) {
  int slots = work.shared_tiles * 16;
  Eight values[N][4];
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      int slot = (threadIdx.x + r * 256) / 8, token = slot % slots, head = blockIdx.x * work.heads + slot / slots;
      Eight value = {};
      if (token < work.tokens && head < H)
        value = *(const Eight*)(from[n] + (long long)(work.begin + token) * strides[n] + head * 64 +
                                threadIdx.x % 8 * 8);
      values[n][r] = value;
    }
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int r = 0; r < 4; r++)
      *(Eight*)(to + n * MATRIX + (threadIdx.x + r * 256) / 8 * ROW + threadIdx.x % 8 * 8) = values[n][r];
}

// A tile of 16 rows as the left side of products, 16 × 64.
__device__ void left(unsigned (*parts)[4], const Real* tile) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 0; d < 4; d++) load_rows(parts[d], tile + (lane / 8 % 2 * 8 + lane % 8) * ROW + d * 16 + lane / 16 * 8);
}

// sums [16, 16] = a [16, 64] × the tile's rows [16, 64], turned
__device__ void products(float* sums, const unsigned (*a)[4], const Real* tile) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 8; k++) sums[k] = 0.0f;
#pragma unroll
  for (int d = 0; d < 4; d++) {
    unsigned b[4];
    load_rows(b, tile + (lane / 16 * 8 + lane % 8) * ROW + d * 16 + lane / 8 % 2 * 8);
    multiply(sums, a[d], b);
    multiply(sums + 4, a[d], b + 2);
  }
}

// sums [16, 64] += weights [16, 16] × the tile's rows [16, 64]
__device__ void weigh(float (*sums)[8], const float* weights, const Real* tile) {
  int lane = threadIdx.x % 32;
  unsigned a[4];
#pragma unroll
  for (int k = 0; k < 4; k++) a[k] = pair(weights[2 * k], weights[2 * k + 1]);
#pragma unroll
  for (int d = 0; d < 4; d++) {
    unsigned b[4];
    load_matrices(b, tile + (lane / 8 % 2 * 8 + lane % 8) * ROW + d * 16 + lane / 16 * 8);
    multiply(sums[d], a, b);
    multiply(sums[d] + 4, a, b + 2);
  }
}

// The row and column in a 16 × 16 tile of a lane's number k of 8.
__device__ int row_of(int k) { return threadIdx.x % 32 / 4 + k / 2 % 2 * 8; }
__device__ int column_of(int k) { return threadIdx.x % 4 * 2 + k % 2 + k / 4 * 8; }

__device__ void write(Real* to, float (*sums)[8], float scale, int stride, const Work& work) {
#pragma unroll
  for (int d = 0; d < 4; d++)
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      int token = work.tile * 16 + row_of(k);
      if (token < work.tokens)
        *(unsigned*)(to + (long long)(work.begin + token) * stride + work.head * 64 + d * 16 + column_of(k)) =
            pair(sums[d][k] * scale, sums[d][k + 1] * scale);
    }
}

// Sums over a warp's rows, for one of three matrices; in shared memory.
__device__ void add_rows(float* columns, int which, float (*sums)[8], float scale) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 0; d < 4; d++)
#pragma unroll
    for (int k = 0; k < 8; k++) {
      if (k / 2 % 2) continue;
      float sum = sums[d][k] + sums[d][k + 2];
      for (int other = 4; other < 32; other *= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
      if (lane < 4) columns[(threadIdx.x / 32 * 3 + which) * 64 + d * 16 + column_of(k)] = sum * scale;
    }
}

// Rows behind the last text are zeros.
__device__ void clear(Real* to, int stride, int begin, int rows) {
  int each = stride / 8;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (rows - begin) * each; i += gridDim.x * blockDim.x) {
    Eight zeros = {};
    *(Eight*)(to + (long long)(begin + i / each) * stride + i % each * 8) = zeros;
  }
}
__device__ unsigned element(const Work& work, int H, int query, int key) {
  return ((unsigned)(blockIdx.y * H + work.head) * 128 + query) * 128 + key;
}

// inputs [T, 3, H, 64], out [T, H, 64], logs [T, H]: log2 of the sum of a row's 2^scores. scale: times log2(e).
extern "C" __global__ void __launch_bounds__(256, 2) attention_forward(
    const Real* inputs, const int* starts, const int* keys, int place, double scale, Real* out, float* logs, int texts,
    int rows, int H) {
  extern __shared__ float shared[];
  if ((int)blockIdx.y == texts) return clear(out, H * 64, starts[texts], rows);
  Work work = work_of(starts);
  if (nothing(work, H)) return;
  const int* key = keys + 2 * place;
  Real *all_queries = (Real*)shared, *all_keys = all_queries + MATRIX, *all_values = all_keys + MATRIX;
  int wide = 3 * H * 64;
  fetch(all_queries, {inputs, inputs + H * 64, inputs + 2 * H * 64}, {wide, wide, wide}, work, H);
  __syncthreads();
  int own = threadIdx.x / 32 / work.shared_tiles * work.shared_tiles * 16;
  unsigned query[4][4];
  left(query, all_queries + (own + work.tile * 16) * ROW);
  float scores[8][8], largest[2] = {-3e38f, -3e38f}, total[2] = {}, sums[4][8] = {};
#pragma unroll
  for (int t = 0; t < 8; t++) {
    if (t >= work.tiles) continue;
    products(scores[t], query, all_keys + (own + t * 16) * ROW);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      scores[t][k] = t * 16 + column_of(k) < work.tokens ? scores[t][k] * (float)scale : -3e38f;
      largest[k / 2 % 2] = fmaxf(largest[k / 2 % 2], scores[t][k]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
    for (int other = 1; other < 4; other *= 2)
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffff, largest[r], other));
#pragma unroll
  for (int t = 0; t < 8; t++) {
    if (t >= work.tiles) continue;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float value = exp2f(scores[t][k] - largest[k / 2 % 2]);
      total[k / 2 % 2] += value;
      bool stays = kept(key, element(work, H, work.tile * 16 + row_of(k), t * 16 + column_of(k)));
      scores[t][k] = stays ? value : 0.0f;
    }
    weigh(sums, scores[t], all_values + (own + t * 16) * ROW);
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
    for (int other = 1; other < 4; other *= 2) total[r] += __shfl_xor_sync(0xffffffff, total[r], other);
  if (work.head >= H || work.tile >= work.tiles) return;
#pragma unroll
  for (int d = 0; d < 4; d++)
#pragma unroll
    for (int k = 0; k < 8; k++) sums[d][k] *= RAISE / total[k / 2 % 2];
  write(out, sums, 1.0f, H * 64, work);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int token = work.tile * 16 + row_of(2 * r);
    if (threadIdx.x % 4 == 0 && token < work.tokens)
      logs[(work.begin + token) * H + work.head] = largest[r] + log2f(total[r]);
  }
}

// grads [T, 3, H, 64] of the inputs, from grad [T, H, 64] of out. parts [texts][3 * H * 64]: sums over a text's tokens.
extern "C" __global__ void __launch_bounds__(256, 2) attention_backward(
    const Real* grad, const Real* inputs, const float* logs, const int* starts, const int* keys,
    int place, double scale, double plain_scale, Real* grads, float* parts,
    int texts, int rows, int H) {
  extern __shared__ float shared[];
  if ((int)blockIdx.y == texts) return clear(grads, 3 * H * 64, starts[texts], rows);
  Work work = work_of(starts);
  if (nothing(work, H)) return;
  const int* key = keys + 2 * place;
  Real *all_queries = (Real*)shared, *all_keys = all_queries + MATRIX, *all_values = all_keys + MATRIX;
  Real* all_grads = all_values + MATRIX;
  float *log_of = (float*)(all_grads + MATRIX), *means = log_of + 128, *columns = means + 128;
  int wide = 3 * H * 64;
  fetch(all_queries, {inputs, inputs + H * 64, inputs + 2 * H * 64, grad}, {wide, wide, wide, H * 64}, work, H);
  int slots = work.shared_tiles * 16;
  for (int slot = threadIdx.x; slot < 128; slot += blockDim.x) {
    int token = slot % slots, head = blockIdx.x * work.heads + slot / slots;
    bool there = token < work.tokens && head < H;
    log_of[slot] = there ? logs[(work.begin + token) * H + head] : 0.0f;
  }
  __syncthreads();
  int own = threadIdx.x / 32 / work.shared_tiles * work.shared_tiles * 16, mine = own + work.tile * 16;
  bool writes = work.head < H && work.tile < work.tiles;
  {
    unsigned query[4][4], gradient[4][4];
    left(query, all_queries + mine * ROW);
    left(gradient, all_grads + mine * ROW);
    float sums[4][8] = {}, mean[2] = {};
    // Twice: a row's mean slope is subtracted from nearly equal slopes, so it is not taken from rounded results.
    for (int round = 0; round < 2; round++) {
      for (int t = 0; t < work.tiles; t++) {
        float scores[8], slopes[8];
        products(scores, query, all_keys + (own + t * 16) * ROW);
        products(slopes, gradient, all_values + (own + t * 16) * ROW);
#pragma unroll
        for (int k = 0; k < 8; k++) {
          int from = work.tile * 16 + row_of(k), to = t * 16 + column_of(k);
          bool inside = from < work.tokens && to < work.tokens;
          float share = inside ? exp2f(scores[k] * (float)scale - log_of[own + from]) : 0.0f;
          float slope = kept(key, element(work, H, from, to)) ? slopes[k] * RAISE : 0.0f;
          if (round == 0) mean[k / 2 % 2] += share * slope;
          slopes[k] = share * (slope - mean[k / 2 % 2]);
        }
        if (round) weigh(sums, slopes, all_keys + (own + t * 16) * ROW);
      }
      if (round) continue;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        for (int other = 1; other < 4; other *= 2) mean[r] += __shfl_xor_sync(0xffffffff, mean[r], other);
        means[own + work.tile * 16 + row_of(2 * r)] = mean[r];
      }
    }
    if (writes) write(grads, sums, (float)plain_scale, wide, work);
    add_rows(columns, 0, sums, (float)plain_scale);
  }
  __syncthreads();
  unsigned from_keys[4][4], from_values[4][4];
  left(from_keys, all_keys + mine * ROW);
  left(from_values, all_values + mine * ROW);
  float key_sums[4][8] = {}, value_sums[4][8] = {};
  for (int t = 0; t < work.tiles; t++) {
    float scores[8], slopes[8];
    products(scores, from_keys, all_queries + (own + t * 16) * ROW);
    products(slopes, from_values, all_grads + (own + t * 16) * ROW);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      int to = work.tile * 16 + row_of(k), from = t * 16 + column_of(k);
      bool inside = from < work.tokens && to < work.tokens, stays = kept(key, element(work, H, from, to));
      float share = inside ? exp2f(scores[k] * (float)scale - log_of[own + from]) : 0.0f;
      scores[k] = stays ? share * RAISE : 0.0f;
      slopes[k] = share * ((stays ? slopes[k] * RAISE : 0.0f) - means[own + from]);
    }
    weigh(value_sums, scores, all_grads + (own + t * 16) * ROW);
    weigh(key_sums, slopes, all_queries + (own + t * 16) * ROW);
  }
  if (writes) {
    write(grads + H * 64, key_sums, (float)plain_scale, wide, work);
    write(grads + 2 * H * 64, value_sums, 1.0f, wide, work);
  }
  add_rows(columns, 1, key_sums, (float)plain_scale);
  add_rows(columns, 2, value_sums, 1.0f);
  __syncthreads();
  parts += (long long)blockIdx.y * wide;
  for (int i = threadIdx.x; i < work.heads * 192; i += blockDim.x) {
    int which = i / 64 % 3, head = blockIdx.x * work.heads + i / 192;
    float total = 0.0f;
    for (int warp = 0; warp < work.shared_tiles; warp++)
      total += columns[((i / 192 * work.shared_tiles + warp) * 3 + which) * 64 + i % 64];
    if (head < H) parts[(which * H + head) * 64 + i % 64] = total;
  }
}
"""


def source(share: float) -> str:
    """The kernels' text for a share of the weights to drop."""
    return f"{REALS[torch.bfloat16]}{EIGHT}{TENSOR_CORES}{dropout.constants(share)}{dropout.TEXT}{TEXT}"


def takes(inputs: Tensor, heads: int, longest: int) -> bool:
    """Whether the kernels take these; else it is torch's attention, padded for that alone."""
    fits = inputs.dtype == torch.bfloat16 and inputs.shape[1] == 3 * heads * HEAD and longest <= LONGEST
    return fits and usable(inputs.device)


def forward(
    inputs: Tensor, starts: Tensor, heads: int, longest: int, keys: Tensor, place: int, share: float
) -> tuple[Tensor, Tensor]:
    """[T, 3 H D] → [T, H D], and what goes to ``backward``.

    Args:
        starts: [N + 1], int32: where each text begins, and where the last one ends; zeros come behind it.
        longest: tokens of the longest text, on the host.
    """
    texts, rows = len(starts) - 1, len(inputs)
    if not takes(inputs, heads, longest):
        with torch.no_grad():
            return _torch(inputs, starts, heads, longest, keys[place], share), starts
    out = torch.empty(rows, heads * HEAD, dtype=inputs.dtype, device=inputs.device)
    logs = torch.empty(rows, heads, device=inputs.device)
    numbers = (place, math.log2(math.e) / math.sqrt(HEAD), out, logs, texts, rows, heads)
    given = (inputs, starts, keys, *numbers)
    launch(source(share), "attention_forward", (heads, texts + 1), given, shared_bytes=FORWARD_BYTES)
    return out, logs


def backward(
    grad: Tensor, inputs: Tensor, logs: Tensor, starts: Tensor, heads: int, longest: int, keys: Tensor,
    place: int, share: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """[T, 3 H D]: the gradient of ``inputs`` from that of the result; and its sums over rows in parts, [N, 3 H D]."""
    if not takes(inputs, heads, longest):
        with torch.enable_grad():
            own = inputs.detach().requires_grad_()
            again = _torch(own, starts, heads, longest, keys[place], share)
            grads = torch.autograd.grad(again, own, grad)[0]
        return grads, grads.float().sum(0)[None]
    grads, texts, rows = torch.empty_like(inputs), len(starts) - 1, len(inputs)
    parts = torch.empty(texts, inputs.shape[1], device=inputs.device)
    scales = (math.log2(math.e) / math.sqrt(HEAD), 1 / math.sqrt(HEAD))
    given = (grad, inputs, logs, starts, keys, place, *scales, grads, parts, texts, rows, heads)
    launch(source(share), "attention_backward", (heads, texts + 1), given, shared_bytes=BACK_BYTES)
    return grads, parts


def _torch(inputs: Tensor, starts: Tensor, heads: int, longest: int, key: Tensor, share: float) -> Tensor:
    """The same by torch, each text padded to the longest: other number formats, a CPU, longer texts."""
    texts, rows, device = len(starts) - 1, len(inputs), inputs.device
    begins, lengths = starts[:-1].long(), (starts[1:] - starts[:-1]).long()
    if not inputs.is_cuda:  # there the host would wait for it
        longest = int(lengths.max())
    columns = torch.arange(longest, device=device)
    real_NL = columns < lengths[:, None]
    places_NL = torch.where(real_NL, begins[:, None] + columns, rows)  # rows: a row of zeros behind all
    padded = F.pad(inputs, (0, 0, 0, 1)).index_select(0, places_NL.view(-1)).view(texts, longest, 3, heads, -1)
    query, key_, value = padded.permute(2, 0, 3, 1, 4)  # [N, H, L, D]
    scores = (query @ key_.transpose(2, 3)).float() * query.shape[-1] ** -0.5
    shares = scores.masked_fill(~real_NL[:, None, None, :], float("-inf")).softmax(3)
    if share:
        text_head = torch.arange(texts * heads, device=device).view(texts, heads, 1, 1)
        numbers = ((text_head * LONGEST + columns[:, None]) * LONGEST + columns) & 0xFFFFFFFF
        shares = shares * dropout.mask(key, numbers, share)
    mixed = (shares.to(inputs.dtype) @ value).transpose(1, 2).reshape(texts * longest, -1)
    result: Tensor = mixed.new_zeros(rows + 1, mixed.shape[1]).index_copy(0, places_NL.view(-1), mixed)
    return result[:rows]
