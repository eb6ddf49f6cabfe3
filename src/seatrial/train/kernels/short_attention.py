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
from seatrial.train.kernels.nvrtc import EIGHT, POWER, REALS, launch, usable
from seatrial.train.kernels.tensor_cores import COPIES, TENSOR_CORES

#: Tokens of the longest text that the kernels take, and numbers a head.
LONGEST, HEAD = 128, 64
#: Numbers between two rows in shared memory beyond a head's: then no two rows of a matrix meet in one bank.
SPARE = 8
#: Bytes of shared memory: three matrices of 128 rows; backwards four, the weights, and each warp's sums. Of Hopper's
#: 228 KB two blocks have room.
FORWARD_BYTES = 3 * LONGEST * (HEAD + SPARE) * 2
BACK_BYTES = (4 * LONGEST * (HEAD + SPARE) + LONGEST * (LONGEST + SPARE)) * 2 + 8 * 3 * HEAD * 4

TEXT = """
constexpr int ROW = 72, MATRIX = 128 * ROW;

// What a block works at, and of that its warp: a text, a head and a tile. level: log2 of the tiles that a head has room
// for. number: which of the text's blocks; without a text (-1) which of the blocks that are left, of so many.
struct Work { int text, begin, tokens, tiles, level, number, left, head, tile; };

// Texts' blocks stand in a row, the last text's first: it is the longest where lengths ascend, and takes longest.
__device__ Work work_of(const int* starts, int texts, int H) {
  __shared__ int sums[8], found[4];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, number = blockIdx.x;
  if (threadIdx.x == 0) found[0] = -1;
  for (int last = texts - 1; last >= 0; last -= 256) {
    int text = last - (int)threadIdx.x, begin = 0, tokens = 0, blocks = 0;
    if (text >= 0) {
      begin = starts[text];
      tokens = starts[text + 1] - begin;
      blocks = ((H << (tokens > 16) + (tokens > 32) + (tokens > 64)) + 7) / 8;
    }
    int end = blocks, all = 0;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      int before = __shfl_up_sync(0xffffffff, end, lanes);
      if (lane >= lanes) end += before;
    }
    if (lane == 31) sums[warp] = end;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 8; w++) {
      if (w == warp) end += all;
      all += sums[w];
    }
    if (number < end && number >= end - blocks) {
      found[0] = text;
      found[1] = begin;
      found[2] = tokens;
      found[3] = number - end + blocks;
    }
    __syncthreads();
    if (found[0] >= 0) break;
    number -= all;
  }
  Work work;
  work.text = found[0];
  work.left = gridDim.x - blockIdx.x + number;
  work.number = number;
  if (work.text < 0) return work;
  work.begin = found[1];
  work.tokens = found[2];
  work.number = found[3];
  work.tiles = (work.tokens + 15) / 16;
  work.level = (work.tokens > 16) + (work.tokens > 32) + (work.tokens > 64);
  work.head = (work.number * 8 + warp) >> work.level;
  work.tile = warp & (1 << work.level) - 1;
  return work;
}

// 128 rows of 64 numbers into shared memory: tile after tile of head after head; zeros behind a text's end. All loads
// go out at once: one after the other they would take as long as everything else.
__device__ void fetch(Real* to, const Real* from, int stride, const Work& work, int H) {
  int column = threadIdx.x % 8 * 8;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    int slot = threadIdx.x / 8 + r * 32, token = slot & (16 << work.level) - 1;
    int head = (work.number * 128 + slot) >> (4 + work.level);
    const Real* row = from + (long long)(work.begin + token) * stride;
    copy(to + slot * ROW + column, row + (head * 64 + column), token < work.tokens && head < H);
  }
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

// sums [16, 64] += a [16, 16] × the tile's rows [16, 64]
__device__ void weigh(float (*sums)[8], const unsigned* a, const Real* tile) {
  int lane = threadIdx.x % 32;
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

// A 16 × 16 tile in bf16, as the left side of products.
__device__ void rounded(unsigned* a, const float* tile) {
#pragma unroll
  for (int k = 0; k < 4; k++) a[k] = pair(tile[2 * k], tile[2 * k + 1]);
}
__device__ void put(Real* to, int stride, const unsigned* a) {
#pragma unroll
  for (int k = 0; k < 4; k++) *(unsigned*)(to + row_of(2 * k) * stride + column_of(2 * k)) = a[k];
}

// sums [16, 64] += 16 columns of weights [tiles * 16, …], turned, × rows [tiles * 16, 64]
__device__ void weigh_turned(float (*sums)[8], const Real* weights, int stride, const Real* rows, int tiles) {
  int lane = threadIdx.x % 32;
  for (int t = 0; t < tiles; t++) {
    unsigned a[4];
    load_matrices(a, weights + (t * 16 + lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
    weigh(sums, a, rows + t * 16 * ROW);
  }
}

// Bit k says whether a lane's number k of a 16 × 16 tile stays. first: the element that is its number 0.
__device__ unsigned staying(const int* key, unsigned first) {
  if (DROP == 0) return 255;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    unsigned both = hashed(key, (first + k / 2 % 2 * 1024 + k / 4 * 8) / 2);
    bits |= ((both & 0xffff) >= DROP ? 1u : 0) << k | (both >> 16 >= DROP ? 2u : 0) << k;
  }
  return bits;
}

__device__ void write(Real* to, float (*sums)[8], float scale, int stride, const Work& work) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int token = work.tile * 16 + row_of(2 * r);
    if (token >= work.tokens) continue;
    Real* row = to + (long long)(work.begin + token) * stride + work.head * 64;
#pragma unroll
    for (int d = 0; d < 4; d++)
#pragma unroll
      for (int k = 2 * r; k < 8; k += 4)
        *(unsigned*)(row + d * 16 + column_of(k)) = pair(sums[d][k] * scale, sums[d][k + 1] * scale);
  }
}

// Sums over a warp's rows, in shared memory. Eight lanes have a column: at each exchange a lane passes on the half of
// its columns that it will not end with.
template <int HALF> __device__ void exchange(float* columns) {
  bool upper = threadIdx.x & 2 * HALF;
#pragma unroll
  for (int c = 0; c < HALF; c++) {
    float other = __shfl_xor_sync(0xffffffff, upper ? columns[c] : columns[c + HALF], 2 * HALF);
    columns[c] = (upper ? columns[c + HALF] : columns[c]) + other;
  }
}
__device__ void add_rows(float* to, float (*sums)[8], float scale) {
  float columns[16];
#pragma unroll
  for (int c = 0; c < 16; c++) columns[c] = sums[c / 4][c / 2 % 2 * 4 + c % 2] + sums[c / 4][c / 2 % 2 * 4 + c % 2 + 2];
  exchange<8>(columns);
  exchange<4>(columns);
  exchange<2>(columns);
  int first = threadIdx.x / 16 % 2 * 8 + threadIdx.x / 8 % 2 * 4 + threadIdx.x / 4 % 2 * 2;
  to += first / 4 * 16 + column_of(first % 4 * 2);
  to[0] = columns[0] * scale;
  to[1] = columns[1] * scale;
}

// Rows behind the last text are zeros; the blocks that are left write them.
__device__ void clear(Real* to, int stride, int begin, int rows, const Work& work) {
  int each = stride / 8;
  for (int i = work.number * blockDim.x + threadIdx.x; i < (rows - begin) * each; i += work.left * blockDim.x) {
    Eight zeros = {};
    *(Eight*)(to + (long long)(begin + i / each) * stride + i % each * 8) = zeros;
  }
}

// The element that is a lane's first of a row of tiles.
__device__ unsigned element(const Work& work, int H) {
  return ((unsigned)(work.text * H + work.head) * 128 + work.tile * 16 + row_of(0)) * 128 + column_of(0);
}

// inputs [T, 3, H, 64], out [T, H, 64], logs [T, H]: log2 of the sum of a row's 2^scores. scale: times log2(e).
extern "C" __global__ void __launch_bounds__(256, 2) attention_forward(
    const Real* inputs, const int* starts, const int* keys, int place, double scale, Real* out, float* logs, int texts,
    int rows, int H) {
  extern __shared__ float shared[];
  Work work = work_of(starts, texts, H);
  if (work.text < 0) return clear(out, H * 64, starts[texts], rows, work);
  int key[2] = {keys[2 * place], keys[2 * place + 1]};
  Real *all_queries = (Real*)shared, *all_keys = all_queries + MATRIX, *all_values = all_keys + MATRIX;
  int wide = 3 * H * 64;
  fetch(all_queries, inputs, wide, work, H);
  fetch(all_keys, inputs + H * 64, wide, work, H);
  fetch(all_values, inputs + 2 * H * 64, wide, work, H);
  copied();
  __syncthreads();
  if (work.head >= H || work.tile >= work.tiles) return;
  int mine = threadIdx.x / 32 * 16, own = mine - work.tile * 16;
  all_keys += own * ROW;
  all_values += own * ROW;
  unsigned query[4][4];
  left(query, all_queries + mine * ROW);
  float scores[8][8], largest[2] = {-3e38f, -3e38f}, total[2] = {}, sums[4][8] = {};
#pragma unroll
  for (int t = 0; t < 8; t++) {
    if (t >= work.tiles) continue;
    products(scores[t], query, all_keys + t * 16 * ROW);
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
    unsigned stay = staying(key, element(work, H) + t * 16), a[4];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float value = exponential2(scores[t][k] - largest[k / 2 % 2]);
      total[k / 2 % 2] += value;
      scores[t][k] = stay >> k & 1 ? value : 0.0f;
    }
    rounded(a, scores[t]);
    weigh(sums, a, all_values + t * 16 * ROW);
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
    for (int other = 1; other < 4; other *= 2) total[r] += __shfl_xor_sync(0xffffffff, total[r], other);
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

// Scores become shares of a row's sum; 0 behind the text's end.
__device__ void share_out(float* scores, const float* log, float scale, int t, const Work& work) {
#pragma unroll
  for (int k = 0; k < 8; k++) scores[k] = exponential2(scores[k] * scale - log[k / 2 % 2]);
  if (t * 16 + 16 <= work.tokens) return;
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (t * 16 + column_of(k) >= work.tokens) scores[k] = 0.0f;
}

// grads [T, 3, H, 64] of the inputs, from grad [T, H, 64] of out. parts [texts][3 * H * 64]: sums over a text's tokens.
// A warp takes a tile of queries; the weights that it finds there lie in shared memory for those that take the keys.
extern "C" __global__ void __launch_bounds__(256, 2) attention_backward(
    const Real* grad, const Real* inputs, const float* logs, const int* starts, const int* keys,
    int place, double scale, double plain_scale, Real* grads, float* parts,
    int texts, int rows, int H) {
  extern __shared__ float shared[];
  Work work = work_of(starts, texts, H);
  if (work.text < 0) return clear(grads, 3 * H * 64, starts[texts], rows, work);
  int key[2] = {keys[2 * place], keys[2 * place + 1]};
  Real *all_queries = (Real*)shared, *all_keys = all_queries + MATRIX, *all_values = all_keys + MATRIX;
  Real *all_grads = all_values + MATRIX, *weights = all_grads + MATRIX;
  float* columns = (float*)(weights + 128 * 136);
  int wide = 3 * H * 64, warp = threadIdx.x / 32, mine = warp * 16, own = mine - work.tile * 16;
  fetch(all_queries, inputs, wide, work, H);
  fetch(all_keys, inputs + H * 64, wide, work, H);
  fetch(all_values, inputs + 2 * H * 64, wide, work, H);
  fetch(all_grads, grad, H * 64, work, H);
  float log[2] = {}, mean[2] = {};
  bool busy = work.head < H && work.tile < work.tiles;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int token = work.tile * 16 + row_of(2 * r);
    if (busy && token < work.tokens) log[r] = logs[(work.begin + token) * H + work.head];
  }
  copied();
  __syncthreads();
  all_queries += own * ROW;
  all_keys += own * ROW;
  all_values += own * ROW;
  all_grads += own * ROW;
  int stride = (16 << work.level) + 8;  // no two rows of a matrix in one bank
  Real *my_weights = weights + mine * stride, *turned = weights + own * stride + work.tile * 16;
  unsigned query[4][4], gradient[4][4];
  unsigned long long stays = 0;  // eight bits for each tile of keys
  // Twice: a row's mean slope is subtracted from nearly equal slopes, so it is not taken from rounded results.
  if (busy) {
    left(query, all_queries + work.tile * 16 * ROW);
    left(gradient, all_grads + work.tile * 16 * ROW);
    for (int t = work.tiles - 1; t >= 0; t--) {
      float scores[8], slopes[8];
      products(scores, query, all_keys + t * 16 * ROW);
      products(slopes, gradient, all_values + t * 16 * ROW);
      share_out(scores, log, (float)scale, t, work);
      unsigned stay = staying(key, element(work, H) + t * 16), a[4];
      stays = stays << 8 | stay;
#pragma unroll
      for (int k = 0; k < 8; k++) {
        scores[k] = stay >> k & 1 ? scores[k] * RAISE : 0.0f;
        mean[k / 2 % 2] += scores[k] * slopes[k];
      }
      rounded(a, scores);
      put(my_weights + t * 16, stride, a);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
      for (int other = 1; other < 4; other *= 2) mean[r] += __shfl_xor_sync(0xffffffff, mean[r], other);
  }
  __syncthreads();
  if (busy) {
    float sums[4][8] = {};
    weigh_turned(sums, turned, stride, all_grads, work.tiles);
    write(grads + 2 * H * 64, sums, 1.0f, wide, work);
    add_rows(columns + (warp * 3 + 2) * 64, sums, 1.0f);
  }
  __syncthreads();
  if (busy) {
    float sums[4][8] = {};
    for (int t = 0; t < work.tiles; t++) {
      float scores[8], slopes[8];
      products(scores, query, all_keys + t * 16 * ROW);
      products(slopes, gradient, all_values + t * 16 * ROW);
      share_out(scores, log, (float)scale, t, work);
      unsigned stay = stays & 255, a[4];
      stays >>= 8;
#pragma unroll
      for (int k = 0; k < 8; k++) scores[k] *= (stay >> k & 1 ? slopes[k] * RAISE : 0.0f) - mean[k / 2 % 2];
      rounded(a, scores);
      put(my_weights + t * 16, stride, a);
      weigh(sums, a, all_keys + t * 16 * ROW);
    }
    write(grads, sums, (float)plain_scale, wide, work);
    add_rows(columns + warp * 3 * 64, sums, (float)plain_scale);
  }
  __syncthreads();
  if (busy) {
    float sums[4][8] = {};
    weigh_turned(sums, turned, stride, all_queries, work.tiles);
    write(grads + H * 64, sums, (float)plain_scale, wide, work);
    add_rows(columns + (warp * 3 + 1) * 64, sums, (float)plain_scale);
  }
  __syncthreads();
  parts += (long long)work.text * wide;
  for (int i = threadIdx.x; i < (8 >> work.level) * 192; i += blockDim.x) {
    int which = i / 64 % 3, place = i / 192, head = (work.number * 8 >> work.level) + place;
    float total = 0.0f;
    for (int tile = 0; tile < work.tiles; tile++)
      total += columns[(((place << work.level) + tile) * 3 + which) * 64 + i % 64];
    if (head < H) parts[(which * H + head) * 64 + i % 64] = total;
  }
}
"""


def source(share: float) -> str:
    """The kernels' text for a share of the weights to drop."""
    numbers = f"{dropout.constants(share)}{dropout.TEXT}"
    return f"{REALS[torch.bfloat16]}{EIGHT}{POWER}{TENSOR_CORES}{COPIES}{numbers}{TEXT}"


def blocks(rows: int, texts: int, heads: int) -> int:
    """Blocks that texts of together ``rows`` tokens take at most, and some that clear what is behind them.

    A text takes a block for eight heads at least; one of 65 tokens and more takes one for each head, and for each token
    beyond the first none takes more blocks than that.
    """
    least = -(-heads // 8)
    return texts * least + (heads - least) * rows // 65 + heads


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
    launch(source(share), "attention_forward", blocks(rows, texts, heads), given, shared_bytes=FORWARD_BYTES)
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
    launch(source(share), "attention_backward", blocks(rows, texts, heads), given, shared_bytes=BACK_BYTES)
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
