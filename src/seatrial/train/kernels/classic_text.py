"""CUDA text of the classic network's step: forward, its head, and backward through that.

The network: images [B, 1, H, W] → convolution 3×3 to 32 channels, ReLU, 2×2 max-pool → the same to 64 channels →
128 hidden units with ReLU → classes, cross-entropy. Products in bf16 on Tensor Cores, sums in fp32, no atomics.
Shapes: H1, W1 and H2, W2 of what the pools give; PLACES = H2·W2; FEATURES = 64·PLACES. Of the second convolution
only the PIXELS = 4·PLACES that its pool looks at are computed.
"""

from __future__ import annotations

#: Sizes that follow from H, W and N (classes), which the text's head names.
SIZES = """
constexpr int C1 = 32, C2 = 64, F = 128, TAPS = 9;
constexpr int H1 = (H - 2) / 2, W1 = (W - 2) / 2, H2 = (H1 - 2) / 2, W2 = (W1 - 2) / 2;
constexpr int PLACES = H2 * W2, PIXELS = 4 * PLACES, FEATURES = C2 * PLACES, AREA = H1 * W1;
constexpr int FIRST = TAPS * C1 + C1, SECOND = C2 * TAPS * C1 + C2, LAST = F + N * F + N;
"""
#: Between memories, by the vector.
VECTORS = """
struct alignas(16) Four { float at[4]; };
struct alignas(8) Two { float first, second; };
struct alignas(8) FourReals { Real at[4]; };

// Rows of fp32 numbers, as bf16 in shared memory with another stride; columns by the four.
__device__ void store_rounded(const float* from, long long stride, Real* to, int to_stride, int rows, int columns) {
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * (columns / 4); i += blockDim.x) {
    int row = i / (columns / 4), column = i % (columns / 4) * 4;
    Four values = *(const Four*)(from + row * stride + column);
    FourReals result;
#pragma unroll
    for (int k = 0; k < 4; k++) result.at[k] = real(values.at[k]);
    *(FourReals*)(to + row * to_stride + column) = result;
  }
}
// Rows of bf16 numbers to shared memory, columns by the eight; zeros from ``filled`` rows on.
__device__ void store_rows(const Real* from, int stride, Real* to, int to_stride, int rows, int columns, int filled) {
#pragma unroll 5
  for (int i = threadIdx.x; i < rows * (columns / 8); i += blockDim.x) {
    int row = i / (columns / 8), column = i % (columns / 8) * 8;
    Eight value = {};
    if (row < filled) value = *(const Eight*)(from + row * stride + column);
    *(Eight*)(to + row * to_stride + column) = value;
  }
}
"""
FORWARD = """
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
"""
HEAD = """
// A warp takes a row. losses [B]: parts of the mean; dh [B][F]: gradient of the hidden units before ReLU.
// sums [gridDim.x][LAST]: of the hidden bias, the last weight and its bias.
extern "C" __global__ void head(
    const float* parts, const float* hidden_bias, const float* weight, const float* bias, const long long* labels,
    float* losses, Real* dh, float* sums, int B) {
  __shared__ float rows[8][F], passed[8][F], slopes[8][N];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * 8 + warp;
  float own[N][F / 32];
#pragma unroll
  for (int k = 0; k < N; k++)
#pragma unroll
    for (int j = 0; j < F / 32; j++) own[k][j] = weight[k * F + j * 32 + lane];
#pragma unroll
  for (int f = lane; f < F; f += 32) {
    float sum = hidden_bias[f];
#pragma unroll
    for (int k = 0; k < SPLITS; k++) sum += row < B ? parts[(k * B + row) * F + f] : 0.0f;
    rows[warp][f] = row < B ? number(real(sum <= 0.0f ? 0.0f : sum)) : 0.0f;
  }
  float logits[N] = {};
#pragma unroll
  for (int j = 0; j < F / 32; j++)
#pragma unroll
    for (int k = 0; k < N; k++) logits[k] += rows[warp][j * 32 + lane] * own[k][j];
  float largest = -3.4e38f, total = 0.0f, chosen = 0.0f;
#pragma unroll
  for (int k = 0; k < N; k++) {
    for (int other = 16; other; other /= 2) logits[k] += __shfl_xor_sync(0xffffffff, logits[k], other);
    logits[k] += bias[k];
    largest = logits[k] > largest || logits[k] != logits[k] ? logits[k] : largest;
  }
  int label = row < B ? (int)labels[row] : 0;
#pragma unroll
  for (int k = 0; k < N; k++) {
    total += expf(logits[k] - largest);
    if (k == label) chosen = logits[k];
  }
  if (lane == 0 && row < B) losses[row] = (logf(total) + largest - chosen) / B;
#pragma unroll
  for (int k = 0; k < N; k++)
    if (lane == k % 32) slopes[warp][k] = row < B ? (expf(logits[k] - largest) / total - (k == label)) / B : 0.0f;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < F / 32; j++) {
    int f = j * 32 + lane;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++) sum += slopes[warp][k] * own[k][j];
    sum = rows[warp][f] > 0.0f ? sum : 0.0f;
    passed[warp][f] = sum;
    if (row < B) dh[row * F + f] = real(sum);
  }
  __syncthreads();
  sums += blockIdx.x * LAST;
  for (int i = threadIdx.x; i < LAST; i += blockDim.x) {
    int k = (i - F) / F, f = (i - F) % F;
    float sum = 0.0f;
#pragma unroll
    for (int r = 0; r < 8; r++)
      sum += i < F ? passed[r][i] : i < F + N * F ? slopes[r][k] * rows[r][f] : slopes[r][i - F - N * F];
    sums[i] = sum;
  }
}

// The logits [B][N] alone; a warp takes a row.
extern "C" __global__ void predict(
    const float* parts, const float* hidden_bias, const float* weight, const float* bias, float* logits, int B) {
  int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
  float own[N] = {};
#pragma unroll
  for (int f = lane; f < F; f += 32) {
    float sum = hidden_bias[f];
#pragma unroll
    for (int k = 0; k < SPLITS; k++) sum += row < B ? parts[(k * B + row) * F + f] : 0.0f;
    sum = number(real(sum <= 0.0f ? 0.0f : sum));
#pragma unroll
    for (int k = 0; k < N; k++) own[k] += sum * weight[k * F + f];
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    for (int other = 16; other; other /= 2) own[k] += __shfl_xor_sync(0xffffffff, own[k], other);
    if (lane == k % 32 && row < B) logits[row * N + k] = own[k] + bias[k];
  }
}

// A block takes 16 features: their gradient dx [B][FEATURES], and that of their weights [F][FEATURES]. The first one
// also adds up the loss.
extern "C" __global__ void hidden_back(
    const Real* dh, const Real* x, const float* weight, const float* losses, Real* dx, float* weight_gradient,
    float* loss, int B) {
  constexpr int A = F + 8, X = 16 + 8;
  alignas(16) __shared__ Real weights[F * X], gradients[64 * A], inputs[64 * X];
  int feature = blockIdx.x * 16, lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % 4 * 16, n = warp / 4 * 8;
  store_rounded(weight + feature, FEATURES, weights, X, F, 16);
  float own[2][4] = {};
  for (int row = 0; row < B; row += 64) {
    __syncthreads();
    store_rows(dh + row * F, F, gradients, A, 64, F, B - row);
    store_rows(x + row * FEATURES + feature, FEATURES, inputs, X, 64, 16, B - row);
    __syncthreads();
    float sums[4] = {};
#pragma unroll
    for (int k = 0; k < F; k += 32) {
      unsigned a[2][4], b[4];
      load_rows(a[0], gradients + (m + lane / 8 % 2 * 8 + lane % 8) * A + k + lane / 16 * 8);
      load_rows(a[1], gradients + (m + lane / 8 % 2 * 8 + lane % 8) * A + k + 16 + lane / 16 * 8);
      load_matrices(b, weights + (k + lane) * X + n);
      multiply(sums, a[0], b), multiply(sums, a[1], b + 2);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int at = row + m + lane / 4 + i / 2 * 8;
      if (at < B) dx[at * FEATURES + feature + n + lane % 4 * 2 + i % 2] = real(sums[i]);
    }
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      unsigned a[4], b[4];
      load_matrices(a, gradients + (k + lane / 16 * 8 + lane % 8) * A + warp * 16 + lane / 8 % 2 * 8);
      load_matrices(b, inputs + (k + lane / 8 % 2 * 8 + lane % 8) * X + lane / 16 * 8);
      multiply(own[0], a, b), multiply(own[1], a, b + 2);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    int unit = warp * 16 + lane / 4 + i / 2 % 2 * 8, at = feature + i / 4 * 8 + lane % 4 * 2 + i % 2;
    weight_gradient[unit * FEATURES + at] = own[i / 4][i % 4];
  }
  if (blockIdx.x || warp) return;
  float total = 0.0f;
  for (int row = lane; row < B; row += 32) total += losses[row];
  for (int other = 16; other; other /= 2) total += __shfl_xor_sync(0xffffffff, total, other);
  if (lane == 0) loss[0] = total;
}
"""
