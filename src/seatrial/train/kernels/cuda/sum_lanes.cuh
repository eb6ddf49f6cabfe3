// Of a block's threads, for 8 channels each; parts [2][C].
__device__ void sum_lanes(float* sums, float* parts) {
  constexpr int COUNT = 2 * C < 256 ? 256 / (2 * C) : 1, EACH = 256 / (C / 8) / COUNT;  // slices, lanes of each
  __shared__ float across[16][257], slices[COUNT * 2 * C];
  for (int k = 0; k < 16; k++) across[k][threadIdx.x] = sums[k];
  __syncthreads();
  for (int i = threadIdx.x; i < COUNT * 2 * C; i += blockDim.x) {
    int slice = i / (2 * C), kind = i / C % 2, c = i % C;
    float total = 0.0f;
#pragma unroll
    for (int lane = 0; lane < EACH; lane++)
      total += across[kind * 8 + c % 8][(slice * EACH + lane) * (C / 8) + c / 8];
    slices[i] = total;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * C; i += blockDim.x) {
    float total = 0.0f;
    for (int slice = 0; slice < COUNT; slice++) total += slices[slice * 2 * C + i];
    parts[i] = total;
  }
}
