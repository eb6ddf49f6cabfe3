#include "real.cuh"
#include "tensor_cores.cuh"
#include "lenet.cuh"
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
