#include "real.cuh"
#include "power.cuh"
#include "gelu.cuh"
constexpr int TAPS = K * K * I, GROUPS = OUT / 8;

// weights [TAPS][C] in shared memory, tap (i, j, channel) in the order of a pixel's neighbours in memory
__device__ void load_filters(const float* filters, const float* bias, float* weights, float* shift) {
  for (int n = threadIdx.x; n < TAPS * C; n += blockDim.x) {
    int c = n % C, tap = n / C;
    weights[n] = filters[c * TAPS + tap];
  }
  for (int c = threadIdx.x; c < C; c += blockDim.x) shift[c] = bias[c];
  __syncthreads();
}

__device__ void convolved(
    const Real* images, const float* weights, const float* shift, int pixel, int group, int H, int W, float* sums) {
  int OW = W - K + 1, OH = H - K + 1, x = pixel % OW, y = pixel / OW % OH, image = pixel / OW / OH;
  float values[TAPS];
#pragma unroll
  for (int i = 0; i < K; i++)
#pragma unroll
    for (int j = 0; j < K * I; j++) values[i * K * I + j] = number(images[((image * H + y + i) * W + x) * I + j]);
#pragma unroll
  for (int c = 0; c < 8; c++) sums[c] = shift[group * 8 + c];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] += values[tap] * weights[tap * C + group * 8 + c];
}

// A thread for eight channels of a pixel; those beyond C are zeros. filters [C][K][K][I]
extern "C" __global__ void whitened(
    const Real* images, const float* filters, const float* bias, Eight* out, int total, int H, int W) {
  alignas(16) __shared__ float weights[TAPS * C];
  alignas(16) __shared__ float shift[C];
  load_filters(filters, bias, weights, shift);
  for (int thread = blockIdx.x * blockDim.x + threadIdx.x; thread < total; thread += gridDim.x * blockDim.x) {
    Eight result = {};
    if (thread % GROUPS < C / 8) {
      float sums[8];
      convolved(images, weights, shift, thread / GROUPS, thread % GROUPS, H, W, sums);
#pragma unroll
      for (int c = 0; c < 8; c++) result.at[c] = real(gelu(sums[c]));
    }
    out[thread] = result;
  }
}

// parts [gridDim.x][C]: sums of the gradients that come through.
extern "C" __global__ void bias_gradient(
    const Real* images, const float* filters, const float* bias, const Eight* grad, float* parts, int pixels, int H,
    int W) {
  alignas(16) __shared__ float weights[TAPS * C];
  alignas(16) __shared__ float shift[C];
  __shared__ float across[8][257];
  load_filters(filters, bias, weights, shift);
  constexpr int LANES = 256 / GROUPS;
  int group = threadIdx.x % GROUPS, lane = threadIdx.x / GROUPS;
  float totals[8] = {};
  if (lane < LANES && group < C / 8)
    for (int pixel = blockIdx.x * LANES + lane; pixel < pixels; pixel += gridDim.x * LANES) {
      Eight gradients = grad[pixel * GROUPS + group];
      float sums[8];
      convolved(images, weights, shift, pixel, group, H, W, sums);
#pragma unroll
      for (int c = 0; c < 8; c++) totals[c] += number(gradients.at[c]) * gelu_slope(sums[c]);
    }
  for (int c = 0; c < 8; c++) across[c][threadIdx.x] = totals[c];
  __syncthreads();
  for (int c = threadIdx.x; c < C; c += blockDim.x) {
    float total = 0.0f;
    for (int l = 0; l < LANES; l++) total += across[c % 8][l * GROUPS + c / 8];
    parts[blockIdx.x * C + c] = total;
  }
}
