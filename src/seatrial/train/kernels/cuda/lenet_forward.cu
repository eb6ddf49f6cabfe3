#include "real.cuh"
#include "tensor_cores.cuh"
#include "lenet.cuh"
// A thread computes eight channels of one place of the pool: four pixels of the convolution. which: 0 to 3, or 4 where
// none was above 0. out [B][AREA][C1]. The blocks beyond the total round the second layer's filters for all who read
// them later.
extern "C" __global__ void first_layer(
    const float* images, const float* filters, const float* bias, Eight* out, Choices* which, const float* following,
    FourReals* rounded, int total) {
  alignas(16) __shared__ float taps[TAPS * C1];
  int beyond = blockIdx.x - (total + 255) / 256;
  if (beyond >= 0) {
    int i = beyond * 256 + threadIdx.x;
    if (i >= C2 * TAPS * C1 / 4) return;
    Four values = ((const Four*)following)[i];
    FourReals result;
#pragma unroll
    for (int k = 0; k < 4; k++) result.at[k] = real(values.at[k]);
    rounded[i] = result;
    return;
  }
  for (int i = threadIdx.x; i < TAPS * C1; i += blockDim.x) taps[i] = filters[i % C1 * TAPS + i / C1];
  __syncthreads();
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int group = thread % 4, place = thread / 4, column = place % W1, row = place / W1 % H1, image = place / AREA;
  const float* corner = images + (image * H + row * 2) * W + column * 2;
  float window[4][4], sums[4][8] = {};
#pragma unroll
  for (int i = 0; i < 16; i++) window[i / 4][i % 4] = corner[i / 4 * W + i % 4];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float weight = taps[tap * C1 + group * 8 + c];
#pragma unroll
      for (int k = 0; k < 4; k++) sums[k][c] += weight * window[tap / 3 + k / 2][tap % 3 + k % 2];
    }
  Eight best;
  Choices choices;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float largest = 0.0f, plus = bias[group * 8 + c];
    signed char choice = 4;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float value = sums[k][c] + plus;
      if (!(value <= largest)) largest = value, choice = k;  // a NaN goes on
    }
    best.at[c] = real(largest);
    choices.at[c] = choice;
  }
  out[thread] = best;
  which[thread] = choices;
}

// A block computes half of the filters for an image, a warp 16 of them for eight places: a pool's four pixels are sums
// of one thread. filters [C2][TAPS][C1]; out and which [B][C2][PLACES]
extern "C" __global__ void second_layer(
    const Real* x, const Real* filters, const float* bias, Real* out, signed char* which) {
  constexpr int A = C1 + 8, K = TAPS * C1 + 8;
  extern __shared__ float shared[];
  Real *inputs = (Real*)shared, *weights = inputs + AREA * A;
  int image = blockIdx.x, f0 = blockIdx.y * 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  store_rows(filters + f0 * TAPS * C1, TAPS * C1, weights, K, 32, TAPS * C1, 32);
  store_rows(x + image * AREA * C1, C1, inputs, A, AREA, C1, AREA);
  __syncthreads();
  for (int task = warp; task < (PLACES + 7) / 8 * 2; task += 8) {
    int n = task % 2 * 16, first = task / 2 * 8;
    const Real *rows[2], *columns = weights + (n + lane / 16 * 8 + lane % 8) * K + lane / 8 % 2 * 8;
#pragma unroll
    for (int t = 0; t < 2; t++) {
      int place = first + lane % 8, member = t * 2 + lane / 8 % 2;
      place = place < PLACES ? place : 0;
      int y = place / W2 * 2 + member / 2, z = place % W2 * 2 + member % 2;
      rows[t] = inputs + (y * W1 + z) * A + lane / 16 * 8;
    }
    float sums[2][2][4] = {};
    unsigned a[2][2][4], b[2][4];  // of this turn and the next, which are loaded while this one is multiplied
#pragma unroll
    for (int turn = 0; turn <= TAPS * 2; turn++) {
      int tap = turn / 2, k = turn % 2 * 16, now = turn % 2;
      if (turn < TAPS * 2) {
        load_rows(a[now][0], rows[0] + (tap / 3 * W1 + tap % 3) * A + k);
        load_rows(a[now][1], rows[1] + (tap / 3 * W1 + tap % 3) * A + k);
        load_rows(b[now], columns + tap * C1 + k);
      }
      if (turn)
#pragma unroll
        for (int t = 0; t < 2; t++)
          multiply(sums[t][0], a[1 - now][t], b[1 - now]), multiply(sums[t][1], a[1 - now][t], b[1 - now] + 2);
    }
    int place = first + lane / 4;
    if (place >= PLACES) continue;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int filter = f0 + n + i / 2 * 8 + lane % 4 * 2 + i % 2;
      float largest = 0.0f, plus = bias[filter];
      signed char choice = 4;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float value = sums[k / 2][i / 2][k % 2 * 2 + i % 2] + plus;
        if (!(value <= largest)) largest = value, choice = k;
      }
      out[(image * C2 + filter) * PLACES + place] = real(largest);
      which[(image * C2 + filter) * PLACES + place] = choice;
    }
  }
}

// 64 rows by 16 units, one part of the features each. parts [gridDim.y][B][F]
extern "C" __global__ void hidden(const Real* x, const float* weight, float* parts, int B) {
  constexpr int A = DEPTH + 8;
  extern __shared__ float shared[];
  Real *rows = (Real*)shared, *columns = rows + 64 * A;
  int unit = blockIdx.x * 16, k0 = blockIdx.y * DEPTH, row = blockIdx.z * 64;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 4 * 16, n = warp / 4 * 8;
  store_rows(x + row * FEATURES + k0, FEATURES, rows, A, 64, DEPTH, B - row);
  store_rounded(weight + unit * FEATURES + k0, FEATURES, columns, A, 16, DEPTH);
  __syncthreads();
  float sums[4] = {};
#pragma unroll
  for (int k = 0; k < DEPTH; k += 32) {
    unsigned a[2][4], b[4];
    load_rows(a[0], rows + (m + lane / 8 % 2 * 8 + lane % 8) * A + k + lane / 16 * 8);
    load_rows(a[1], rows + (m + lane / 8 % 2 * 8 + lane % 8) * A + k + 16 + lane / 16 * 8);
    load_rows(b, columns + (n + lane % 8) * A + k + lane / 8 * 8);
    multiply(sums, a[0], b), multiply(sums, a[1], b + 2);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int at = row + m + lane / 4 + i / 2 * 8;
    if (at < B) parts[(blockIdx.y * B + at) * F + unit + n + lane % 4 * 2 + i % 2] = sums[i];
  }
}
