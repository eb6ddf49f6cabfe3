#include "real.cuh"
constexpr int EACH = (H / 8 + 31) / 32;
// A block makes one sum: rows order[begins[n]] … order[begins[n + 1] - 1], into row n of sums.
extern "C" __global__ void token_sums(const Real* rows, const int* order, const int* begins, Real* sums, int add) {
  __shared__ float across[8][H];
  int begin = begins[blockIdx.x], end = begins[blockIdx.x + 1];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float total[EACH][8] = {};
  for (int i = begin + warp; i < end; i += 8) {
    const Real* row = rows + (long long)order[i] * H;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int column = (e * 32 + lane) * 8;
      if (column >= H) continue;
      Eight own = *(const Eight*)(row + column);
#pragma unroll
      for (int k = 0; k < 8; k++) total[e][k] += number(own.at[k]);
    }
  }
#pragma unroll
  for (int e = 0; e < EACH; e++)
#pragma unroll
    for (int k = 0; k < 8; k++)
      if ((e * 32 + lane) * 8 < H) across[warp][(e * 32 + lane) * 8 + k] = total[e][k];
  __syncthreads();
  for (int column = threadIdx.x; column < H; column += blockDim.x) {
    float sum = 0.0f;
    for (int other = 0; other < 8; other++) sum += across[other][column];
    Real* to = sums + (long long)blockIdx.x * H + column;
    *to = real(add ? sum + number(*to) : sum);
  }
}
