#include "real.cuh"
#include "sum_lanes.cuh"
struct Numbers { float at[8]; };
__device__ Numbers eight_of(const float* numbers, int group) {
  float4 low = ((const float4*)numbers)[group * 2], high = ((const float4*)numbers)[group * 2 + 1];
  return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

__device__ float slope(float z) {
  if (ACT == 1) return z > 0.0f ? 1.0f : 0.0f;
  if (ACT == 2)
    return 0.5f * (1.0f + erff(z * 0.7071067811865476f)) + z * 0.3989422804014327f * expf(-0.5f * z * z);
  return 1.0f;
}

// What a block's threads summed goes into parts [blocks][2][C], or at once into totals [2][C].
__device__ void keep(float* sums, float* parts, double* totals) {
  if (!ATOMIC) {
    sum_lanes(sums, parts + blockIdx.x * 2 * C);
    return;
  }
  __shared__ float own[ATOMIC ? 2 * C : 1];
  sum_lanes(sums, own);
  for (int i = threadIdx.x; i < 2 * C; i += blockDim.x) atomicAdd(totals + i, (double)own[i]);
}

extern "C" __global__ void total_rows(const float* parts, double* totals, int rows) {
  __shared__ float across[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float total = 0.0f;
#pragma unroll 8
  for (int row = warp; row < rows; row += 8) total += parts[row * 2 * C + column];
  across[warp][lane] = total;
  __syncthreads();
  if (warp) return;
  for (int other = 1; other < 8; other++) total += across[other][lane];
  totals[column] = total;
}

// Sums of each channel's differences to its first value, and of their squares.
extern "C" __global__ void wide_moments(const Real* x, float* parts, double* totals, int pixels) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  const Eight* data = (const Eight*)x + group;
  Eight first = data[0];
  Numbers start;
#pragma unroll
  for (int c = 0; c < 8; c++) start.at[c] = number(first.at[c]);
  float sums[16] = {};
  for (int pixel = blockIdx.x * lanes + threadIdx.x / (C / 8); pixel < pixels; pixel += 4 * stride) {
    Eight values[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int at = pixel + k * stride;
      values[k] = at < pixels ? data[(long long)at * (C / 8)] : first;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float difference = number(values[k].at[c]) - start.at[c];
        sums[c] += difference;
        sums[8 + c] += difference * difference;
      }
  }
  keep(sums, parts, totals);
}

// A thread for eight channels of EACH pixels. The first block also writes table [4][C]: scale, shift, mean and
// 1 / deviation, and running statistics as torch keeps them. mask: a bit for each number of a sum that was above 0.
extern "C" __global__ void normalised(
    const Eight* x, const Eight* beside, const double* totals, const float* weight, const float* bias, float* table,
    float* running_mean, float* running_variance, long long* batches, Eight* out, unsigned char* mask, int total,
    int pixels, double epsilon, double momentum) {
  __shared__ float4 room[2 * C / 4];
  float *scales = (float*)room, *shifts = scales + C;
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Eight values[EACH], others[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    values[k] = x[at];
    if (beside) others[k] = beside[at];
  }
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    float away = (float)totals[c] / pixels, variance = fmaxf((float)totals[C + c] / pixels - away * away, 0.0f);
    float mean = number(((const Real*)x)[c]) + away, inverse = 1.0f / sqrtf(variance + (float)epsilon);
    float scale = weight[c] * inverse, shift = bias[c] - mean * scale;
    scales[c] = scale;
    shifts[c] = shift;
    if (blockIdx.x) continue;
    table[c] = scale, table[C + c] = shift, table[2 * C + c] = mean, table[3 * C + c] = inverse;
    float share = (float)momentum;
    running_mean[c] += share * (mean - running_mean[c]);
    running_variance[c] += share * (variance * pixels / (pixels - 1.0f) - running_variance[c]);
    if (c == 0) batches[0] += 1;
  }
  __syncthreads();
  Numbers scale = eight_of(scales, group), shift = eight_of(shifts, group);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    Eight result;
    unsigned above = 0;
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float z = number(values[k].at[c]) * scale.at[c] + shift.at[c];
      if (beside) z += number(others[k].at[c]);
      above |= (z > 0.0f ? 1u : 0u) << c;
      if (ACT == 1) z = z <= 0.0f ? 0.0f : z;  // a NaN goes on
      if (ACT == 2) z = 0.5f * z * (1.0f + erff(z * 0.7071067811865476f));
      result.at[c] = real(z);
    }
    out[at] = result;
    if (beside) mask[at] = above;
  }
}

// Sums of the gradients that come through, and of their products with what they belong to less its mean. With a mask
// (a sum was activated) that tells where, and the gradient goes to the other summand as well.
extern "C" __global__ void gradient_sums(
    const Eight* grad, const Eight* x, const unsigned char* mask, const float* table, Eight* beside, float* parts,
    double* totals, int pixels) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group), mean = eight_of(table + 2 * C, group);
  float sums[16] = {};
  for (int pixel = blockIdx.x * lanes + threadIdx.x / (C / 8); pixel < pixels; pixel += 2 * stride) {
    Eight gradients[2], values[2];
    unsigned above[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = pixel + k * stride;
      long long at = (long long)(row < pixels ? row : pixel) * (C / 8) + group;
      gradients[k] = grad[at];
      values[k] = x[at];
      above[k] = mask ? mask[at] : 0;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = pixel + k * stride;
      if (row >= pixels) continue;
      Eight passed;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float value = number(values[k].at[c]), gradient = number(gradients[k].at[c]);
        if (!mask) gradient *= slope(value * scale.at[c] + shift.at[c]);
        else if (ACT == 1) gradient = above[k] >> c & 1 ? gradient : 0.0f;
        passed.at[c] = real(gradient);
        sums[c] += gradient;
        sums[8 + c] += gradient * (value - mean.at[c]);
      }
      if (mask) beside[(long long)row * (C / 8) + group] = passed;
    }
  }
  keep(sums, parts, totals);
}

// The gradient of x is scale * gradient + times * x + plus. passed: grad is what came through. The first block writes
// grads [2][C], of weight and bias.
extern "C" __global__ void gradient_of_x(
    const Eight* grad, const Eight* x, const float* table, const double* totals, float* grads, Eight* dx, int total,
    int pixels, int passed) {
  __shared__ float4 room[2 * C / 4];
  float *of_x = (float*)room, *plain = of_x + C;
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Eight gradients[EACH], values[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    gradients[k] = grad[at];
    values[k] = x[at];
  }
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    float scale = table[c], inverse = table[3 * C + c], sum = (float)totals[c], products = (float)totals[C + c];
    of_x[c] = -scale * inverse * inverse * products / pixels;
    plain[c] = -scale * sum / pixels - of_x[c] * table[2 * C + c];
    if (blockIdx.x) continue;
    grads[c] = products * inverse, grads[C + c] = sum;
  }
  __syncthreads();
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Numbers times = eight_of(of_x, group), plus = eight_of(plain, group);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at >= total) continue;
    Eight result;
#pragma unroll
    for (int c = 0; c < 8; c++) {
      float value = number(values[k].at[c]), gradient = number(gradients[k].at[c]);
      if (!passed) gradient *= slope(value * scale.at[c] + shift.at[c]);
      result.at[c] = real(gradient * scale.at[c] + value * times.at[c] + plus.at[c]);
    }
    dx[at] = result;
  }
}
