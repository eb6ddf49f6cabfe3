#include "real.cuh"
__device__ void sum_block(float* sums, int count) {
  __shared__ float across[2][8];
  for (int k = 0; k < count; k++) {
    for (int other = 16; other; other /= 2) sums[k] += __shfl_xor_sync(0xffffffff, sums[k], other);
    if (threadIdx.x % 32 == 0) across[k][threadIdx.x / 32] = sums[k];
  }
  __syncthreads();
  for (int k = 0; k < count; k++) {
    sums[k] = 0.0f;
    for (int warp = 0; warp < 8; warp++) sums[k] += across[k][warp];
  }
}
// The root of the sum of some rows' squares.
__device__ float norm_of(const float* squares, int rows) {
  float sum[1] = {};
  for (int row = threadIdx.x; row < rows; row += blockDim.x) sum[0] += squares[row];
  sum_block(sum, 1);
  return sqrtf(sum[0]);
}

// A block for a row. updates [T][M][L], squares [T][2][M]: of the update's rows and of the parameter's.
extern "C" __global__ void momentum_rows(POINTERS, Real* updates, float* squares, double momentum) {
  float *p, *m;
  const float* g;
  int rows, columns, tensor, row;
  TENSORS
  float sums[2] = {}, share = (float)momentum;
  p += row * columns, g += row * columns, m += row * columns, updates += (tensor * M + row) * L;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    float gradient = g[i], buffer = share * m[i] + gradient;
    m[i] = buffer;
    float update = gradient + share * buffer;
    updates[i] = real(update);
    sums[0] += update * update;
    sums[1] += p[i] * p[i];
  }
  sum_block(sums, 2);
  if (threadIdx.x == 0) squares[tensor * 2 * M + row] = sums[0], squares[tensor * 2 * M + M + row] = sums[1];
}

extern "C" __global__ void unit_rows(Real* updates, const float* squares) {
  int rows, columns, tensor, row;
  PLACES
  float factor = 1.0f / (norm_of(squares + tensor * 2 * M, rows) + 1e-7f);
  updates += (tensor * M + row) * L;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) updates[i] = real(number(updates[i]) * factor);
}

// Each matrix is brought to norm √rows and moved against its update.
extern "C" __global__ void update_rows(POINTERS, const Real* updates, const float* squares, const float* rate) {
  float *p, *m;
  const float* g;
  int rows, columns, tensor, row;
  TENSORS
  float factor = sqrtf((float)rows) / norm_of(squares + tensor * 2 * M + M, rows);
  p += row * columns, updates += (tensor * M + row) * L;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) p[i] = p[i] * factor - rate[0] * number(updates[i]);
}
