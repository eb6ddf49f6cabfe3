// The network: images [B, 1, H, W] → convolution 3×3 to 32 channels, ReLU, 2×2 max-pool → the same to 64 channels →
// 128 hidden units with ReLU → classes, cross-entropy. Products in bf16 on Tensor Cores, sums in fp32, no atomics.
// Shapes: H1, W1 and H2, W2 of what the pools give; PLACES = H2·W2; FEATURES = 64·PLACES. Of the second convolution
// only the PIXELS = 4·PLACES that its pool looks at are computed.
constexpr int C1 = 32, C2 = 64, F = 128, TAPS = 9;
constexpr int H1 = (H - 2) / 2, W1 = (W - 2) / 2, H2 = (H1 - 2) / 2, W2 = (W1 - 2) / 2;
constexpr int PLACES = H2 * W2, PIXELS = 4 * PLACES, FEATURES = C2 * PLACES, AREA = H1 * W1;
constexpr int FIRST = TAPS * C1 + C1, SECOND = C2 * TAPS * C1 + C2, LAST = F + N * F + N;
// Between memories, by the vector.
struct alignas(16) Four { float at[4]; };
struct alignas(8) Two { float first, second; };
struct alignas(8) FourReals { Real at[4]; };

// Rows of fp32 numbers, as bf16 in shared memory with another stride; columns by the four.
__device__ void store_rounded(const float* from, long long stride, Real* to, int to_stride, int rows, int columns) {
#pragma unroll 4
  for (int i = threadIdx.x; i < rows * (columns / 4); i += blockDim.x) {
    int row = i / (columns / 4), column = i % (columns / 4) * 4;
    Four values = *(const Four*)(from + row * stride + column);
    FourReals result;
#pragma unroll
    for (int k = 0; k < 4; k++) result.at[k] = real(values.at[k]);
    *(FourReals*)(to + row * to_stride + column) = result;
  }
}
// Rows of bf16 numbers to shared memory, columns by the eight; zeros from ``filled`` rows on.
__device__ void store_rows(const Real* from, int stride, Real* to, int to_stride, int rows, int columns, int filled) {
#pragma unroll 5
  for (int i = threadIdx.x; i < rows * (columns / 8); i += blockDim.x) {
    int row = i / (columns / 8), column = i % (columns / 8) * 8;
    Eight value = {};
    if (row < filled) value = *(const Eight*)(from + row * stride + column);
    *(Eight*)(to + row * to_stride + column) = value;
  }
}
