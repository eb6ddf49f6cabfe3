#include "real.cuh"
#include "numbers.cuh"
#include "dropout.cuh"
constexpr int EIGHTS = H / 8, EACH = (EIGHTS + 31) / 32;
__device__ float warp_sum(float value) {
  for (int other = 16; other; other /= 2) value += __shfl_xor_sync(0xffffffff, value, other);
  return value;
}
// The e-th eight columns of this lane, where a warp has a row.
__device__ int column_of(int e) { return (e * 32 + threadIdx.x % 32) * 8; }
// Those columns of a row; 0 beyond its end. Every read of a row is under way before the first is waited for.
template <class Piece, class Number> __device__ void read(Piece* pieces, const Number* row) {
#pragma unroll
  for (int e = 0; e < EACH; e++) pieces[e] = column_of(e) < H ? *(const Piece*)(row + column_of(e)) : Piece{};
}

// Normalises v, a row's elements of this lane; writes y and the normalised row before gain and shift.
__device__ void finish(
    float (*v)[8], const Numbers* gain, const Numbers* shift, double epsilon, Real* y, Real* hat, float* scale, int row,
    const int* key) {
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int e = 0; e < EACH; e++)
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[e][k];
  float mean = warp_sum(sum) * (1.0f / H);
#pragma unroll
  for (int e = 0; e < EACH; e++)
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (column_of(e) < H) squares += (v[e][k] - mean) * (v[e][k] - mean);
  float inverse = rsqrtf(warp_sum(squares) * (1.0f / H) + (float)epsilon);
  if (threadIdx.x % 32 == 0) scale[row] = inverse;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    if (column_of(e) >= H) continue;
    unsigned bits = key ? kept_of_eight(key, (unsigned)row * H + column_of(e)) : 0;
    Eight normed, result;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float value = (v[e][k] - mean) * inverse, bent = value * gain[e].at[k] + shift[e].at[k];
      normed.at[k] = real(value);
      result.at[k] = real(key ? dropped(bent, bits, k) : bent);
    }
    *(Eight*)(hat + (long long)row * H + column_of(e)) = normed;
    *(Eight*)(y + (long long)row * H + column_of(e)) = result;
  }
}

extern "C" __global__ void __launch_bounds__(256, 2) norm_forward(
    const Real* __restrict__ x, const float* __restrict__ bias, const Real* __restrict__ residual,
    const float* __restrict__ gain, const float* __restrict__ shift, const int* __restrict__ keys, int place,
    double epsilon, Real* __restrict__ y, Real* __restrict__ hat, float* __restrict__ scale, int rows) {
  int row = blockIdx.x * 8 + threadIdx.x / 32;
  if (row >= rows) return;
  const int key[2] = {keys[2 * place], keys[2 * place + 1]};
  Eight own[EACH], beside[EACH];
  Numbers plus[EACH], gains[EACH], shifts[EACH];
  read(own, x + (long long)row * H);
  read(beside, residual + (long long)row * H);
  read(plus, bias);
  read(gains, gain);
  read(shifts, shift);
  float v[EACH][8];
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    unsigned bits = kept_of_eight(key, (unsigned)row * H + column_of(e));
    Numbers z = numbers(own[e]), more = numbers(beside[e]);
#pragma unroll
    for (int k = 0; k < 8; k++) v[e][k] = dropped(z.at[k] + plus[e].at[k], bits, k) + more.at[k];
  }
  finish(v, gains, shifts, epsilon, y, hat, scale, row, nullptr);
}

// The sum of three embeddings, normalised, then dropped out.
extern "C" __global__ void embed_forward(
    const int* __restrict__ tokens, const int* __restrict__ positions, const float* __restrict__ words,
    const float* __restrict__ places, const float* __restrict__ kinds, const float* __restrict__ gain,
    const float* __restrict__ shift, const int* __restrict__ keys, int place, double epsilon, Real* __restrict__ y,
    Real* __restrict__ hat, float* __restrict__ scale, int rows) {
  int row = blockIdx.x * 8 + threadIdx.x / 32;
  if (row >= rows) return;
  const int key[2] = {keys[2 * place], keys[2 * place + 1]};
  Numbers word[EACH], at[EACH], kind[EACH], gains[EACH], shifts[EACH];
  read(kind, kinds);
  read(word, words + (long long)tokens[row] * H);
  read(at, places + (long long)positions[row] * H);
  read(gains, gain);
  read(shifts, shift);
  float v[EACH][8];
#pragma unroll
  for (int e = 0; e < EACH; e++)
#pragma unroll
    for (int k = 0; k < 8; k++) v[e][k] = word[e].at[k] + at[e].at[k] + kind[e].at[k];
  finish(v, gains, shifts, epsilon, y, hat, scale, row, key);
}

// dz: the gradient of what is normalised; dx (where dropout came before): that of x + bias. AFTER: dropout came after.
// parts [gridDim.x][3][H]: sums over rows of the gradients of bias, gain and shift. TILE rows at a time: a warp takes a
// row for the sums over columns; then a thread takes eight columns, whose sums over rows it keeps, and reads again what
// the multiprocessor has just read.
constexpr int GROUPS = EIGHTS > 128 ? 1 : EIGHTS > 64 ? 2 : EIGHTS > 32 ? 4 : 8;
struct Factors { float own, constant, normed; };
template <bool AFTER> __device__ void backward(
    const Real* dy, const Real* hat, const float* scale, const float* gain, const int* keys, int place, Real* dz,
    Real* dx, float* parts, int rows) {
  __shared__ Factors factors[2][TILE];
  __shared__ unsigned char kept[2][TILE][EIGHTS];
  __shared__ Numbers across[GROUPS][3][EIGHTS];
  int warp = threadIdx.x / 32, eight = threadIdx.x % EIGHTS, group = threadIdx.x / EIGHTS;
  const int key[2] = {keys[2 * place], keys[2 * place + 1]};
  Numbers biases = {}, gains = {}, shifts = {};
  for (int first = blockIdx.x * TILE, turn = 0; first < rows; first += gridDim.x * TILE, turn ^= 1) {
    Eight own[TILE / 8][EACH], normed[TILE / 8][EACH];
    Numbers times[EACH];
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
      int row = first + n * 8 + warp < rows ? first + n * 8 + warp : rows - 1;
      read(own[n], dy + (long long)row * H);
      read(normed[n], hat + (long long)row * H);
    }
    read(times, gain);
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
      int row = first + n * 8 + warp < rows ? first + n * 8 + warp : rows - 1;
      float sum = 0.0f, product = 0.0f, inverse = scale[row];
#pragma unroll
      for (int e = 0; e < EACH; e++) {
        unsigned bits = kept_of_eight(key, (unsigned)row * H + column_of(e));
        if (DROP && column_of(e) < H) kept[turn][n * 8 + warp][column_of(e) / 8] = bits;
        Numbers g = numbers(own[n][e]), h = numbers(normed[n][e]);
#pragma unroll
        for (int k = 0; k < 8; k++) {
          float value = (AFTER ? dropped(g.at[k], bits, k) : g.at[k]) * times[e].at[k];
          sum += value;
          product += value * h.at[k];
        }
      }
      sum = warp_sum(sum) * (1.0f / H);
      product = warp_sum(product) * (1.0f / H);
      if (threadIdx.x % 32 == 0) factors[turn][n * 8 + warp] = {inverse, -sum * inverse, -product * inverse};
    }
    __syncthreads();
    Numbers fixed = *(const Numbers*)(gain + eight * 8);
#pragma unroll
    for (int n = 0; n < TILE / GROUPS; n++) {
      int i = n * GROUPS + group, row = first + i;
      if (group >= GROUPS || row >= rows) break;
      long long at = (long long)row * H + eight * 8;
      Numbers own = numbers(*(const Eight*)(dy + at)), normed = numbers(*(const Eight*)(hat + at));
      Eight result, before;
      Factors by = factors[turn][i];
      unsigned bits = DROP ? kept[turn][i][eight] : 0;
#pragma unroll
      for (int k = 0; k < 8; k++) {
        float g = AFTER ? dropped(own.at[k], bits, k) : own.at[k], h = normed.at[k];
        gains.at[k] += g * h;
        shifts.at[k] += g;
        g = g * fixed.at[k] * by.own + (by.constant + h * by.normed);
        result.at[k] = real(g);
        if (!AFTER) g = dropped(g, bits, k);
        before.at[k] = real(g);
        biases.at[k] += g;
      }
      *(Eight*)(dz + at) = result;
      if (DROP && !AFTER) *(Eight*)(dx + at) = before;
    }
  }
  if (group < GROUPS)
    across[group][0][eight] = biases, across[group][1][eight] = gains, across[group][2][eight] = shifts;
  __syncthreads();
  for (int i = threadIdx.x; i < 3 * H; i += blockDim.x) {
    float total = 0.0f;
    for (int other = 0; other < GROUPS; other++) total += across[other][0][i / 8].at[i % 8];
    parts[(long long)blockIdx.x * 3 * H + i] = total;
  }
}
extern "C" __global__ void __launch_bounds__(256, 2) norm_backward(
    const Real* __restrict__ dy, const Real* __restrict__ hat, const float* __restrict__ scale,
    const float* __restrict__ gain, const int* __restrict__ keys, int place, Real* __restrict__ dz,
    Real* __restrict__ dx, float* __restrict__ parts, int rows) {
  backward<false>(dy, hat, scale, gain, keys, place, dz, dx, parts, rows);
}
extern "C" __global__ void __launch_bounds__(256, 2) embed_backward(
    const Real* __restrict__ dy, const Real* __restrict__ hat, const float* __restrict__ scale,
    const float* __restrict__ gain, const int* __restrict__ keys, int place, Real* __restrict__ dz,
    float* __restrict__ parts, int rows) {
  backward<true>(dy, hat, scale, gain, keys, place, dz, nullptr, parts, rows);
}
