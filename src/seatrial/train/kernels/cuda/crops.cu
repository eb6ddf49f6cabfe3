#include "real.cuh"
// Beyond an edge its pixels come again in reverse order without the edge itself: padding by reflection.
__device__ int reflected(int at, int size) { return at < 0 ? -at : at >= size ? 2 * size - 2 - at : at; }

// A thread for each pixel that is cut out. tops, lefts: from pixels beyond the edge on; mirrored: 0 or 1.
extern "C" __global__ void crops(
    const unsigned char* images, const long long* labels, const long long* rows, const long long* position,
    const unsigned char* mirrored, const long long* tops, const long long* lefts, const float* scale,
    const float* shift, Real* out, long long* picked, int total, int first, int batch, int C, int H, int W, int h,
    int w, int pixels) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  int x = thread % w, y = thread / w % h, row = thread / w / h;
  long long from = rows[position[0] * batch + first + row];
  int i = reflected(y + (int)tops[from] - pixels, H), j = reflected(x + (int)lefts[from] - pixels, W);
  if (mirrored[from]) j = W - 1 - j;
#pragma unroll 3
  for (int c = 0; c < C; c++)
    out[thread * C + c] = real(images[((from * C + c) * H + i) * W + j] * scale[c] + shift[c]);
  if (x == 0 && y == 0) picked[row] = labels[from];
}
