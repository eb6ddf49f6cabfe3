#include "real.cuh"
// Each channel's two totals over the rows of parts [rows][2][C], which eight warps take in turns.
__device__ void total_parts(const float* parts, int rows, int channel, float* totals) {
  __shared__ float across[2][8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float first = 0.0f, second = 0.0f;
#pragma unroll 8
  for (int row = warp; row < rows; row += 8) {
    first += parts[row * 2 * C + channel];
    second += parts[row * 2 * C + C + channel];
  }
  across[0][warp][lane] = first;
  across[1][warp][lane] = second;
  __syncthreads();
  for (int kind = 0; kind < 2; kind++) {
    totals[kind] = 0.0f;
    for (int other = 0; other < 8; other++) totals[kind] += across[kind][other][lane];
  }
}

// table [4][C]: scale, shift, mean, 1 / deviation. Running statistics as torch keeps them.
extern "C" __global__ void normalise(
    const float* parts, const Real* x, const float* weight, const float* bias, float* table, float* running_mean,
    float* running_variance, long long* batches, int rows, int pixels,
    double epsilon, double momentum) {
  float totals[2];
  int c = blockIdx.x * 32 + threadIdx.x % 32;
  total_parts(parts, rows, c, totals);
  if (threadIdx.x >= 32) return;
  float away = totals[0] / pixels, variance = fmaxf(totals[1] / pixels - away * away, 0.0f);
  float mean = number(x[c]) + away, inverse = 1.0f / sqrtf(variance + (float)epsilon);
  table[c] = weight[c] * inverse;
  table[C + c] = bias[c] - mean * weight[c] * inverse;
  table[2 * C + c] = mean;
  table[3 * C + c] = inverse;
  float share = (float)momentum;
  running_mean[c] += share * (mean - running_mean[c]);
  running_variance[c] += share * (variance * pixels / (pixels - 1.0f) - running_variance[c]);
  if (c == 0) batches[0] += 1;
}

// grads [2][C]: of weight and bias; back [2][C]: the gradient of x is scale * gradient + back[0] * x + back[1].
extern "C" __global__ void normalise_back(
    const float* parts, const float* table, float* grads, float* back, int rows, int pixels) {
  float totals[2];
  int c = blockIdx.x * 32 + threadIdx.x % 32;
  total_parts(parts, rows, c, totals);
  if (threadIdx.x >= 32) return;
  float scale = table[c], mean = table[2 * C + c], inverse = table[3 * C + c];
  grads[c] = totals[1] * inverse;
  grads[C + c] = totals[0];
  back[c] = -scale * inverse * inverse * totals[1] / pixels;
  back[C + c] = -scale * totals[0] / pixels - back[c] * mean;
}
