#include "real.cuh"
#include "power.cuh"
#include "tensor_cores.cuh"
#include "dropout.cuh"
// Source: PTX ISA, "cp.async".
#ifdef ON_CPU
static void copy(Real* to, const Real* from, bool there) { *(Eight*)to = there ? *(const Eight*)from : Eight{}; }
static void copied() {}
#else
// 16 bytes into shared memory while the thread goes on; zeros where nothing is there. copied: all of this thread's are.
__device__ void copy(Real* to, const Real* from, bool there) {
  unsigned address = (unsigned)__cvta_generic_to_shared(to), bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(address), "l"(from), "r"(bytes) : "memory");
}
__device__ void copied() { asm volatile("cp.async.wait_all;" : : : "memory"); }
#endif
constexpr int ROW = 72, MATRIX = 128 * ROW;
#ifndef ON_CPU
__device__ void bar_sync(int which, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(which), "r"(threads) : "memory");
}
#endif
struct alignas(8) Pairs { unsigned at[2]; };

// What a warp works at: of a text, a tile of a head. first: the head's first row in shared memory, of the block's 128.
// Without a text (-1): its block's number of those that are left, of so many.
struct Work { int text, begin, tokens, tiles, head, tile, first, number, left; };
__device__ bool idle(const Work& work, int H) { return work.head >= H || work.tile >= work.tiles; }
// The warps of a head wait for each other; no others have to.
__device__ void meet(const Work& work) { bar_sync(work.first / 16 + 1, work.tiles * 32); }

// log2 of the tiles that each of a text's heads has room for.
__device__ int level_of(int tokens) { return (tokens > 16) + (tokens > 32) + (tokens > 64); }

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
      blocks = ((H << level_of(tokens)) + 7) / 8;
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
  work.number = number;
  work.left = gridDim.x - blockIdx.x + number;
  if (work.text < 0) return work;
  work.begin = found[1];
  work.tokens = found[2];
  work.tiles = work.tokens > 16 ? (work.tokens + 15) / 16 : 1;
  int level = level_of(work.tokens);
  work.head = (found[3] * 8 + warp) >> level;
  work.tile = warp & (1 << level) - 1;
  work.first = (warp - work.tile) * 16;
  return work;
}

// The warp's 16 rows of 64 numbers into shared memory; zeros behind the text's end.
__device__ void fetch(Real* to, const Real* from, int stride, const Work& work) {
  int lane = threadIdx.x % 32, column = lane % 8 * 8;
  from += (long long)(work.begin + work.tile * 16) * stride + work.head * 64;
  to += (work.first + work.tile * 16) * ROW;
#pragma unroll
  for (int r = lane / 8; r < 16; r += 4)
    copy(to + r * ROW + column, from + r * stride + column, work.tile * 16 + r < work.tokens);
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
#pragma unroll 2
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

// Rows of a warp's tile in bf16. Neighbouring lanes exchange pairs, so that each writes four numbers side by side.
__device__ void write(Real* to, float (*sums)[8], float scale, int stride, const Work& work) {
  bool odd = threadIdx.x & 1;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int token = work.tile * 16 + row_of(2 * r);
    Real* row = to + (long long)(work.begin + token) * stride + work.head * 64 + (odd ? 6 : 0) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int d = 0; d < 4; d++) {
      unsigned low = pair(sums[d][2 * r] * scale, sums[d][2 * r + 1] * scale);
      unsigned high = pair(sums[d][2 * r + 4] * scale, sums[d][2 * r + 5] * scale);
      unsigned other = __float_as_uint(__shfl_xor_sync(0xffffffff, __uint_as_float(odd ? low : high), 1));
      Pairs pairs = {odd ? other : low, odd ? high : other};
      if (token < work.tokens) *(Pairs*)(row + d * 16) = pairs;
    }
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

// Scores become shares of a row's sum; 0 behind the text's end.
__device__ void share_out(float* scores, const float* log, float scale, int t, const Work& work) {
#pragma unroll
  for (int k = 0; k < 8; k++) scores[k] = exponential2(scores[k] * scale - log[k / 2 % 2]);
  if (t * 16 + 16 <= work.tokens) return;
#pragma unroll
  for (int k = 0; k < 8; k++)
    if (t * 16 + column_of(k) >= work.tokens) scores[k] = 0.0f;
}

// inputs [T, 3, H, 64], out [T, H, 64], logs [T, H]: log2 of the sum of a row's 2^scores. scale: times log2(e).
extern "C" __global__ void __launch_bounds__(256, 2) attention_forward(
    const Real* inputs, const int* starts, const int* keys, int place, double scale, Real* out, float* logs, int texts,
    int rows, int H) {
  extern __shared__ float shared[];
  Work work = work_of(starts, texts, H);
  if (work.text < 0) return clear(out, H * 64, starts[texts], rows, work);
  if (idle(work, H)) return;
  int key[2] = {keys[2 * place], keys[2 * place + 1]};
  Real *all_queries = (Real*)shared, *all_keys = all_queries + MATRIX, *all_values = all_keys + MATRIX;
  int wide = 3 * H * 64;
  fetch(all_queries, inputs, wide, work);
  fetch(all_keys, inputs + H * 64, wide, work);
  fetch(all_values, inputs + 2 * H * 64, wide, work);
  copied();
  meet(work);
  all_queries += work.first * ROW;
  all_keys += work.first * ROW;
  all_values += work.first * ROW;
  unsigned query[4][4];
  left(query, all_queries + work.tile * 16 * ROW);
  float largest[2] = {-3e38f, -3e38f}, total[2] = {}, sums[4][8] = {};
  // Twice, as that takes less time than to keep all scores.
#pragma unroll 2
  for (int t = 0; t < work.tiles; t++) {
    float scores[8];
    products(scores, query, all_keys + t * 16 * ROW);
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (t * 16 + column_of(k) < work.tokens) largest[k / 2 % 2] = fmaxf(largest[k / 2 % 2], scores[k] * (float)scale);
  }
#pragma unroll
  for (int r = 0; r < 2; r++)
    for (int other = 1; other < 4; other *= 2)
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffff, largest[r], other));
#pragma unroll 1
  for (int t = 0; t < work.tiles; t++) {
    float scores[8];
    products(scores, query, all_keys + t * 16 * ROW);
    share_out(scores, largest, (float)scale, t, work);
    unsigned stay = staying(key, element(work, H) + t * 16), a[4];
#pragma unroll
    for (int k = 0; k < 8; k++) {
      total[k / 2 % 2] += scores[k];
      if (!(stay >> k & 1)) scores[k] = 0.0f;
    }
    rounded(a, scores);
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

// grads [T, 3, H, 64] of the inputs, from grad [T, H, 64] of out. parts [texts][3 * H * 64]: sums over a text's tokens.
// A warp takes a tile of queries; the weights that it finds there lie in shared memory for those that take the keys.
extern "C" __global__ void __launch_bounds__(256, 2) attention_backward(
    const Real* grad, const Real* inputs, const float* logs, const int* starts, const int* keys,
    int place, double scale, double plain_scale, Real* grads, float* parts,
    int texts, int rows, int H) {
  extern __shared__ float shared[];
  Work work = work_of(starts, texts, H);
  if (work.text < 0) return clear(grads, 3 * H * 64, starts[texts], rows, work);
  if (idle(work, H)) return;
  int key[2] = {keys[2 * place], keys[2 * place + 1]};
  Real *all_queries = (Real*)shared, *all_keys = all_queries + MATRIX, *all_values = all_keys + MATRIX;
  Real *all_grads = all_values + MATRIX, *weights = all_grads + MATRIX;
  float* columns = (float*)(weights + 128 * 136);
  int wide = 3 * H * 64;
  fetch(all_queries, inputs, wide, work);
  fetch(all_keys, inputs + H * 64, wide, work);
  fetch(all_values, inputs + 2 * H * 64, wide, work);
  fetch(all_grads, grad, H * 64, work);
  float log[2] = {}, mean[2] = {};
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int token = work.tile * 16 + row_of(2 * r);
    if (token < work.tokens) log[r] = logs[(work.begin + token) * H + work.head];
  }
  copied();
  meet(work);
  all_queries += work.first * ROW;
  all_keys += work.first * ROW;
  all_values += work.first * ROW;
  all_grads += work.first * ROW;
  columns += work.first / 16 * 192;
  int stride = (16 << level_of(work.tokens)) + 8;  // no two rows of a matrix in one bank
  weights += work.first * stride;
  Real *my_weights = weights + work.tile * 16 * stride, *turned = weights + work.tile * 16;
  float* my_columns = columns + work.tile * 192;
  unsigned query[4][4], gradient[4][4];
  left(query, all_queries + work.tile * 16 * ROW);
  left(gradient, all_grads + work.tile * 16 * ROW);
  unsigned long long stays = 0;  // eight bits for each tile of keys
  // Twice: a row's mean slope is subtracted from nearly equal slopes, so it is not taken from rounded results.
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
  meet(work);
  {
    float sums[4][8] = {};
    weigh_turned(sums, turned, stride, all_grads, work.tiles);
    write(grads + 2 * H * 64, sums, 1.0f, wide, work);
    add_rows(my_columns + 128, sums, 1.0f);
  }
  meet(work);
  {
    float sums[4][8] = {};
    for (int t = 0; t < work.tiles; t++) {
      float scores[8], slopes[8];
      products(scores, query, all_keys + t * 16 * ROW);
      products(slopes, gradient, all_values + t * 16 * ROW);
      share_out(scores, log, (float)scale, t, work);
      unsigned stay = DROP ? stays & 255 : 255, a[4];
      stays >>= 8;
#pragma unroll
      for (int k = 0; k < 8; k++) scores[k] *= (stay >> k & 1 ? slopes[k] * RAISE : 0.0f) - mean[k / 2 % 2];
      rounded(a, scores);
      put(my_weights + t * 16, stride, a);
      weigh(sums, a, all_keys + t * 16 * ROW);
    }
    write(grads, sums, (float)plain_scale, wide, work);
    add_rows(my_columns, sums, (float)plain_scale);
  }
  meet(work);
  {
    float sums[4][8] = {};
    weigh_turned(sums, turned, stride, all_queries, work.tiles);
    write(grads + H * 64, sums, (float)plain_scale, wide, work);
    add_rows(my_columns + 64, sums, (float)plain_scale);
  }
  meet(work);
  parts += (long long)work.text * wide + work.head * 64;
  for (int i = work.tile * 32 + threadIdx.x % 32; i < 192; i += work.tiles * 32) {
    float total = 0.0f;
#pragma unroll 1
    for (int tile = 0; tile < work.tiles; tile++) total += columns[tile * 192 + i];
    parts[i / 64 * H * 64 + i % 64] = total;
  }
}
