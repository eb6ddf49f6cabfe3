// Sums over the rows of a matrix, always in the same order: partial sums of many blocks become one gradient.
extern "C" __global__ void sum_rows(const float* matrix, float* sums, int rows, int columns) {
  __shared__ float across[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
  float total = 0.0f;
  if (column < columns)
#pragma unroll 8
    for (int row = warp; row < rows; row += 8) total += matrix[(long long)row * columns + column];
  across[warp][lane] = total;
  __syncthreads();
  if (warp || column >= columns) return;
  for (int other = 1; other < 8; other++) total += across[other][lane];
  sums[column] = total;
}
