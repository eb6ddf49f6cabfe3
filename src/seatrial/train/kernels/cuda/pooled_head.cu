#include "real.cuh"
constexpr int TURNS = F / 256;

// A warp takes a row. features [B][F] and which [B][F]: the largest value and its place. losses [B], slopes [B][K]:
// the gradient of the mean loss by the logits, which are multiplied by times.
extern "C" __global__ void pooled_cross_entropy(
    const Eight* x, const float* weight, const long long* labels, Eight* features, Choices* which, float* losses,
    float* slopes, int B, int P, double times, double smoothing) {
  int lane = threadIdx.x % 32, row = blockIdx.x * ROWS + threadIdx.x / 32;
  float logits[K] = {};
  if (row < B)
    for (int turn = 0; turn < TURNS; turn++) {
      int group = turn * 32 + lane;
      Eight best = x[(long long)row * P * (F / 8) + group];
      Choices places = {};
#pragma unroll 4
      for (int p = 1; p < P; p++) {
        Eight other = x[((long long)row * P + p) * (F / 8) + group];
#pragma unroll
        for (int c = 0; c < 8; c++) {
          float most = number(best.at[c]), value = number(other.at[c]);
          if (!(value <= most) && most == most) best.at[c] = other.at[c], places.at[c] = (signed char)p;
        }
      }
      features[row * (F / 8) + group] = best;
      which[row * (F / 8) + group] = places;
#pragma unroll
      for (int k = 0; k < K; k++)
#pragma unroll
        for (int c = 0; c < 8; c++) logits[k] += number(best.at[c]) * weight[k * F + group * 8 + c];
    }
  float largest = -3.4e38f, total = 0.0f, expected = 0.0f;
  int label = row < B ? (int)labels[row] : 0;
#pragma unroll
  for (int k = 0; k < K; k++) {
    for (int other = 16; other; other /= 2) logits[k] += __shfl_xor_sync(0xffffffff, logits[k], other);
    logits[k] *= (float)times;
    largest = logits[k] > largest || logits[k] != logits[k] ? logits[k] : largest;
  }
  if (row >= B) return;
#pragma unroll
  for (int k = 0; k < K; k++) {
    total += expf(logits[k] - largest);
    expected += logits[k] * ((float)smoothing / K + (k == label ? 1.0f - (float)smoothing : 0.0f));
  }
  if (lane == 0) losses[row] = (logf(total) + largest - expected) / B;
#pragma unroll
  for (int k = 0; k < K; k++) {
    float wanted = (float)smoothing / K + (k == label ? 1.0f - (float)smoothing : 0.0f);
    if (lane == k % 32) slopes[row * K + k] = (expf(logits[k] - largest) / total - wanted) / B;
  }
}

// parts [gridDim.x][K][F]: of the weight. scale [1]: the gradient of the mean loss.
extern "C" __global__ void pooled_cross_entropy_back(
    const Eight* features, const Choices* which, const float* weight, const float* slopes, const float* scale,
    Eight* dx, float* parts, int B, int P, double times) {
  __shared__ float own[ROWS][K];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = blockIdx.x * ROWS + warp;
  for (int i = threadIdx.x; i < ROWS * K; i += blockDim.x) {
    int at = blockIdx.x * ROWS + i / K;
    own[i / K][i % K] = at < B ? slopes[at * K + i % K] * scale[0] * (float)times : 0.0f;
  }
  __syncthreads();
  if (row < B)
    for (int turn = 0; turn < TURNS; turn++) {
      int group = turn * 32 + lane;
      Choices places = which[row * (F / 8) + group];
      Eight gradient;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < K; k++) sum += own[warp][k] * weight[k * F + group * 8 + c];
        gradient.at[c] = real(sum);
      }
#pragma unroll 4
      for (int p = 0; p < P; p++) {
        Eight result;
#pragma unroll
        for (int c = 0; c < 8; c++) result.at[c] = (unsigned char)places.at[c] == p ? gradient.at[c] : 0;
        dx[((long long)row * P + p) * (F / 8) + group] = result;
      }
    }
  parts += blockIdx.x * K * F;
  const Real* numbers = (const Real*)features + (long long)blockIdx.x * ROWS * F;
  for (int f = threadIdx.x; f < F; f += blockDim.x) {
    float sums[K] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float value = blockIdx.x * ROWS + r < B ? number(numbers[r * F + f]) : 0.0f;
#pragma unroll
      for (int k = 0; k < K; k++) sums[k] += own[r][k] * value;
    }
    for (int k = 0; k < K; k++) parts[k * F + f] = sums[k];
  }
}
