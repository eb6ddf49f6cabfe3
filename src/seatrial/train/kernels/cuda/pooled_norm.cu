#include "real.cuh"
#include "sum_lanes.cuh"
#include "power.cuh"
#include "gelu.cuh"
struct Numbers { float at[8]; };
__device__ Numbers eight_of(const float* numbers, int group) {
  Numbers result;
#pragma unroll
  for (int c = 0; c < 8; c++) result.at[c] = numbers[group * 8 + c];
  return result;
}
__device__ float activated(float z) { return ACT == 2 ? gelu(z) : z <= 0.0f ? 0.0f : z; }  // a NaN goes on
__device__ float slope(float z) { return ACT == 2 ? gelu_slope(z) : z > 0.0f ? 1.0f : 0.0f; }

struct Square { Eight at[4]; };
__device__ Square square_of(const Eight* x, int place, int group, int H, int W) {
  int PH = H / 2, PW = W / 2, column = place % PW, row = place / PW % PH, image = place / PW / PH;
  const Eight* corner = x + ((long long)(image * H + row * 2) * W + column * 2) * (C / 8) + group;
  return {corner[0], corner[C / 8], corner[W * (C / 8)], corner[(W + 1) * (C / 8)]};
}
// The largest for eight channels, the first among equals; a NaN goes on.
__device__ Eight largest(const Square& values, Choices* which) {
  Eight best = values.at[0];
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float most = number(best.at[c]);
    which->at[c] = 0;
#pragma unroll
    for (int k = 1; k < 4; k++) {
      float value = number(values.at[k].at[c]);
      if (!(value <= most) && most == most) most = value, best.at[c] = values.at[k].at[c], which->at[c] = k;
    }
  }
  return best;
}
__device__ void add(float* sums, const Eight& values, const Numbers& start) {
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float difference = number(values.at[c]) - start.at[c];
    sums[c] += difference;
    sums[8 + c] += difference * difference;
  }
}

// Each channel's sums of differences to its first value and of their squares.
extern "C" __global__ void plain_moments(const Eight* x, float* parts, int places) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Eight first = x[group];
  Numbers start;
  for (int c = 0; c < 8; c++) start.at[c] = number(first.at[c]);
  float sums[16] = {};
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += 4 * stride) {
    Eight values[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int at = place + k * stride;
      values[k] = at < places ? x[(long long)at * (C / 8) + group] : first;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) add(sums, values[k], start);
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// The same of what the pool gives, which is written, and which pixel it was.
extern "C" __global__ void pooled_moments(
    const Eight* x, Eight* out, Choices* which, float* parts, int places, int H, int W) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Choices choices[2];
  Eight first = largest(square_of(x, 0, group, H, W), choices);
  Numbers start;
  for (int c = 0; c < 8; c++) start.at[c] = number(first.at[c]);
  float sums[16] = {};
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += 2 * stride) {
    int next = place + stride;
    Square one = square_of(x, place, group, H, W), two = square_of(x, next < places ? next : place, group, H, W);
    Eight best = largest(one, choices), other = largest(two, choices + 1);
    out[(long long)place * (C / 8) + group] = best;
    which[(long long)place * (C / 8) + group] = choices[0];
    add(sums, best, start);
    if (next >= places) continue;
    out[(long long)next * (C / 8) + group] = other;
    which[(long long)next * (C / 8) + group] = choices[1];
    add(sums, other, start);
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// table [4][C]: scale, shift, mean, 1 / deviation. A thread for eight channels of EACH places.
extern "C" __global__ void normalised(const Eight* x, const float* table, Eight* out, int total) {
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Eight values[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k * blockDim.x < total) values[k] = x[first + k * blockDim.x];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    Eight result;
#pragma unroll
    for (int c = 0; c < 8; c++) result.at[c] = real(activated(number(values[k].at[c]) * scale.at[c] + shift.at[c]));
    if (first + k * blockDim.x < total) out[first + k * blockDim.x] = result;
  }
}

// By running statistics, of the pool or without one: each thread eight channels of a place.
extern "C" __global__ void evaluated(
    const Eight* x, const float* running_mean, const float* running_variance, const float* weight, const float* bias,
    Eight* out, int total, int H, int W, int pools, double epsilon) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x, group = threadIdx.x % (C / 8);
  if (thread >= total) return;
  Choices choices;
  Eight values = pools ? largest(square_of(x, thread / (C / 8), group, H, W), &choices) : x[thread], result;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    int channel = group * 8 + c;
    float scale = weight[channel] * rsqrtf(running_variance[channel] + (float)epsilon);
    result.at[c] = real(activated((number(values.at[c]) - running_mean[channel]) * scale + bias[channel]));
  }
  out[thread] = result;
}

// Sums of the gradients that come through, and of their products with what they belong to less its mean.
extern "C" __global__ void gradient_sums(
    const Eight* grad, const Eight* x, const float* table, float* parts, int places) {
  int group = threadIdx.x % (C / 8), lanes = blockDim.x / (C / 8), stride = gridDim.x * lanes;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group), mean = eight_of(table + 2 * C, group);
  float sums[16] = {};
  for (int place = blockIdx.x * lanes + threadIdx.x / (C / 8); place < places; place += 2 * stride) {
    Eight gradients[2], values[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = place + k * stride;
      long long at = (long long)(row < places ? row : place) * (C / 8) + group;
      gradients[k] = grad[at];
      values[k] = x[at];
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
      if (place + k * stride >= places) continue;
#pragma unroll
      for (int c = 0; c < 8; c++) {
        float value = number(values[k].at[c]);
        float gradient = number(gradients[k].at[c]) * slope(value * scale.at[c] + shift.at[c]);
        sums[c] += gradient;
        sums[8 + c] += gradient * (value - mean.at[c]);
      }
    }
  }
  sum_lanes(sums, parts + blockIdx.x * 2 * C);
}

// back [2][C]: the gradient of x is scale * gradient + back[0] * x + back[1].
__device__ Eight gradient_at(const Eight& gradients, const Eight& values, const Numbers& scale, const Numbers& shift,
                             const Numbers& times, const Numbers& plus) {
  Eight result;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    float value = number(values.at[c]);
    float gradient = number(gradients.at[c]) * slope(value * scale.at[c] + shift.at[c]);
    result.at[c] = real(gradient * scale.at[c] + value * times.at[c] + plus.at[c]);
  }
  return result;
}

extern "C" __global__ void gradient_of_x(
    const Eight* grad, const Eight* x, const float* table, const float* back, Eight* dx, int total) {
  int group = threadIdx.x % (C / 8), first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Numbers times = eight_of(back, group), plus = eight_of(back + C, group);
  Eight gradients[EACH], values[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = first + k * blockDim.x;
    if (at < total) gradients[k] = grad[at], values[k] = x[at];
  }
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k * blockDim.x < total)
      dx[first + k * blockDim.x] = gradient_at(gradients[k], values[k], scale, shift, times, plus);
}

// A thread computes the gradient of two places and writes the 2×2 pixels of each, and those at odd edges, which no
// pool sees.
extern "C" __global__ void gradient_unpooled(
    const Eight* grad, const Eight* pooled, const Choices* which, const float* table, const float* back, Eight* dx,
    int total, int H, int W) {
  int group = threadIdx.x % (C / 8), PH = H / 2, PW = W / 2, CH = (H + 1) / 2, CW = (W + 1) / 2;
  Numbers scale = eight_of(table, group), shift = eight_of(table + C, group);
  Numbers times = eight_of(back, group), plus = eight_of(back + C, group);
  Eight gradients[2], values[2];
  Choices choices[2];
  int first = blockIdx.x * blockDim.x * 2 + threadIdx.x;
#pragma unroll
  for (int n = 0; n < 2; n++) {
    int cell = (first + n * blockDim.x) / (C / 8), column = cell % CW, row = cell / CW % CH, image = cell / CW / CH;
    if (first + n * blockDim.x >= total || row >= PH || column >= PW) continue;
    long long place = (long long)((image * PH + row) * PW + column) * (C / 8) + group;
    gradients[n] = grad[place], values[n] = pooled[place], choices[n] = which[place];
  }
#pragma unroll
  for (int n = 0; n < 2; n++) {
    int cell = (first + n * blockDim.x) / (C / 8), column = cell % CW, row = cell / CW % CH, image = cell / CW / CH;
    if (first + n * blockDim.x >= total) break;
    Eight result = {};
    bool pooled_here = row < PH && column < PW;
    if (pooled_here) result = gradient_at(gradients[n], values[n], scale, shift, times, plus);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int y = row * 2 + k / 2, z = column * 2 + k % 2;
      if (y >= H || z >= W) continue;
      Eight pixel;
#pragma unroll
      for (int c = 0; c < 8; c++) pixel.at[c] = pooled_here && choices[n].at[c] == k ? result.at[c] : 0;
      dx[((long long)(image * H + y) * W + z) * (C / 8) + group] = pixel;
    }
  }
}
