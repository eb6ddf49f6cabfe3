#include "real.cuh"
#include "numbers.cuh"
#include "power.cuh"
#include "gelu.cuh"
// gelu and its slope at z. In bf16 by GELU's polynomial, of |z|: 1 - tail on the one side is tail on the other.
struct Bell { float size, height, tail; };
__device__ Bell bell(float z) {
  Bell at;
  at.size = fabsf(z);
  at.height = exponential2(-0.72134752f * z * z);
  float t = reciprocal(1.0f + 0.23164189f * at.size);
  at.tail = t * (0.12741480f + t * (-0.14224837f + t * (0.71070687f + t * (-0.72657601f + t * 0.5307027f))));
  return at;
}
__device__ float activated(float z) {
  if (sizeof(Real) == 4) return 0.5f * z * (1.0f + erff(z * 0.70710678f));
  Bell at = bell(z);
  return fmaxf(z, 0.0f) - at.size * (at.tail * at.height);
}
__device__ float slope(float z) {
  if (sizeof(Real) == 4)
    return 0.5f * (1.0f + erff(z * 0.70710678f)) + 0.39894228f * z * expf(-0.5f * z * z);
  Bell at = bell(z);
  float below = (at.tail - 0.39894228f * at.size) * at.height;
  return z < 0.0f ? below : 1.0f - below;
}

// A thread keeps to eight columns; a warp takes rows, AHEAD of them read before the first is waited for.
constexpr int AHEAD = 4 / sizeof(Real);
extern "C" __global__ void __launch_bounds__(256, 4) gelu_forward(
    const Real* __restrict__ x, const float* __restrict__ bias, Real* __restrict__ y, int rows, int columns) {
  int warp = threadIdx.x / 32, column = (blockIdx.x * 32 + threadIdx.x % 32) * 8, step = gridDim.y * 8;
  if (column >= columns) return;
  Numbers plus = *(const Numbers*)(bias + column);
  for (int first = blockIdx.y * 8 + warp; first < rows; first += AHEAD * step) {
    Eight own[AHEAD];
#pragma unroll
    for (int n = 0; n < AHEAD; n++)
      if (first + n * step < rows) own[n] = *(const Eight*)(x + (long long)(first + n * step) * columns + column);
#pragma unroll
    for (int n = 0; n < AHEAD; n++) {
      if (first + n * step >= rows) break;
      Numbers z = numbers(own[n]);
      Eight result;
#pragma unroll
      for (int k = 0; k < 8; k++) result.at[k] = real(activated(z.at[k] + plus.at[k]));
      *(Eight*)(y + (long long)(first + n * step) * columns + column) = result;
    }
  }
}

// dx = dy × gelu'(x + bias). parts [gridDim.y][columns]: its sums over rows.
extern "C" __global__ void __launch_bounds__(256, 4) gelu_backward(
    const Real* dy, const Real* x, const float* bias, Real* dx, float* parts, int rows, int columns) {
  __shared__ float across[8][256];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = (blockIdx.x * 32 + lane) * 8, step = gridDim.y * 8;
  float sums[8] = {};
  if (column < columns) {
    Numbers plus = *(const Numbers*)(bias + column);
    for (int first = blockIdx.y * 8 + warp; first < rows; first += AHEAD * step) {
      Eight own[AHEAD], before[AHEAD];
#pragma unroll
      for (int n = 0; n < AHEAD; n++) {
        long long at = (long long)(first + n * step) * columns + column;
        if (first + n * step < rows) own[n] = *(const Eight*)(dy + at), before[n] = *(const Eight*)(x + at);
      }
#pragma unroll
      for (int n = 0; n < AHEAD; n++) {
        if (first + n * step >= rows) break;
        Numbers g = numbers(own[n]), z = numbers(before[n]);
        Eight result;
#pragma unroll
        for (int k = 0; k < 8; k++) {
          float value = g.at[k] * slope(z.at[k] + plus.at[k]);
          sums[k] += value;
          result.at[k] = real(value);
        }
        *(Eight*)(dx + (long long)(first + n * step) * columns + column) = result;
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 8; k++) across[warp][lane * 8 + k] = sums[k];
  __syncthreads();
  if ((int)(blockIdx.x * 256 + threadIdx.x) >= columns) return;
  float total = 0.0f;
  for (int other = 0; other < 8; other++) total += across[other][threadIdx.x];
  parts[(long long)blockIdx.y * columns + blockIdx.x * 256 + threadIdx.x] = total;
}

// Four matrices of parts side by side, summed over their rows; added to what is there, or written over it.
extern "C" __global__ void sum_parts(
    const float* parts0, const float* parts1, const float* parts2, const float* parts3, int rows0, int rows1, int rows2,
    int rows3, int columns0, int columns1, int columns2, int columns3, Real* sums, int add) {
  __shared__ float across[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = blockIdx.x * 32 + lane, column = at;
  const float* parts = parts0;
  int rows = rows0, columns = columns0;
  if (column >= columns) {
    column -= columns, parts = parts1, rows = rows1, columns = columns1;
    if (column >= columns) {
      column -= columns, parts = parts2, rows = rows2, columns = columns2;
      if (column >= columns) column -= columns, parts = parts3, rows = rows3, columns = columns3;
    }
  }
  float total = 0.0f;
  if (column < columns)
#pragma unroll 8
    for (int row = warp; row < rows; row += 8) total += parts[(long long)row * columns + column];
  across[warp][lane] = total;
  __syncthreads();
  if (warp || column >= columns) return;
  for (int other = 1; other < 8; other++) total += across[other][lane];
  sums[at] = real(add ? total + number(sums[at]) : total);
}
