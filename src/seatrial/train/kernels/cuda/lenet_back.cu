#include "real.cuh"
#include "tensor_cores.cuh"
#include "lenet.cuh"
// The gradient of an image's second convolution in shared memory: each place's goes to one of its four pixels.
__device__ int pixel_of(int place, int choice) {
  return (place / W2 * 2 + choice / 2) * (2 * W2) + place % W2 * 2 + choice % 2;
}

// What the second pool hands back to an image, in registers: loaded before anything waits.
struct Handed { Real gradient[(FEATURES + 255) / 256]; signed char choice[(FEATURES + 255) / 256]; };
__device__ Handed handed_back(const Real* grad, const signed char* which) {
  Handed result;
#pragma unroll
  for (int n = 0; n < (FEATURES + 255) / 256; n++) {
    int i = n * 256 + threadIdx.x;
    result.choice[n] = i < FEATURES ? which[i] : 4;
    result.gradient[n] = i < FEATURES ? grad[i] : 0;
  }
  return result;
}
// Each to its pixel of rows that are WIDE, AWAY from the first.
__device__ void scatter(const Handed& handed, Real* gradients, int wide, int away) {
#pragma unroll
  for (int n = 0; n < (FEATURES + 255) / 256; n++) {
    int i = n * 256 + threadIdx.x;
    if (handed.choice[n] == 4) continue;
    int pixel = pixel_of(i % PLACES, handed.choice[n]);
    int at = (pixel / (2 * W2) + away) * wide + pixel % (2 * W2) + away;
    gradients[at * (C2 + 8) + i / PLACES] = handed.gradient[n];
  }
}

// The filters' gradient of the second layer, one image a block. parts [B][C2 * TAPS * C1 + C2]
__device__ void filters_back(
    const Real* x, const Real* grad, const signed char* which, float* parts, Real* gradients, Real* inputs) {
  constexpr int A = C2 + 8, X = C1 + 8, ROWS = (PIXELS + 15) / 16 * 16;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Handed handed = handed_back(grad, which);
  for (int i = threadIdx.x; i < ROWS * A / 8; i += blockDim.x) ((Eight*)gradients)[i] = Eight{};
  store_rows(x, C1, inputs, X, AREA, C1, AREA);
  __syncthreads();
  scatter(handed, gradients, 2 * W2, 0);
  if (threadIdx.x < C2) {
    float sum = 0.0f;
#pragma unroll 25
    for (int p = 0; p < PLACES; p++) {
      int i = threadIdx.x * PLACES + p;
      sum += which[i] != 4 ? number(grad[i]) : 0.0f;
    }
    parts[C2 * TAPS * C1 + threadIdx.x] = sum;
  }
  __syncthreads();
  int m = warp % 4 * 16, n = warp / 4 * 16;
  float sums[TAPS][8] = {};
  for (int first = 0; first < ROWS; first += 16) {
    int pixel = first + lane / 8 % 2 * 8 + lane % 8;
    int place = pixel < PIXELS ? pixel / (2 * W2) * W1 + pixel % (2 * W2) : 0;
    unsigned a[4], b[4];
    load_matrices(a, gradients + (first + lane / 16 * 8 + lane % 8) * A + m + lane / 8 % 2 * 8);
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) {
      load_matrices(b, inputs + (place + tap / 3 * W1 + tap % 3) * X + n + lane / 16 * 8);
      multiply(sums[tap], a, b), multiply(sums[tap] + 4, a, b + 2);
    }
  }
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      int c = m + lane / 4 + k / 2 % 2 * 8, i = n + k / 4 * 8 + lane % 4 * 2;
      *(Two*)(parts + (c * TAPS + tap) * C1 + i) = {sums[tap][k], sums[tap][k + 1]};
    }
}

// The gradient of what the first pool gave, for some tiles of 16 of its places, and from it that of the first layer's
// filters, one part of an image a block. parts [FIRST]
__device__ void inputs_back(
    const Real* grad, const signed char* which, const Real* filters, const float* image, const signed char* chosen,
    float* parts, int begin, int end, Real* gradients, Real* weights, float* pixels) {
  constexpr int A = C2 + 8, X = C1 + 8, WIDE = W1 + 2, HIGH = H1 + 2;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Handed handed = handed_back(grad, which);
  int last = (end * 16 < AREA ? end * 16 : AREA) - begin * 16;
  signed char choices[TILES * 16];
#pragma unroll
  for (int n = 0; n < TILES * 16; n++) {
    int at = warp + n * 8;
    choices[n] = at < last ? chosen[(begin * 16 + at) * C1 + lane] : 4;
  }
  // [C2][TAPS][C1] → [TAPS][C2][X]
#pragma unroll 9
  for (int i = threadIdx.x; i < C2 * TAPS * C1 / 8; i += blockDim.x) {
    int c = i % (C1 / 8) * 8, tap = i / (C1 / 8) % TAPS, filter = i / (C1 / 8) / TAPS;
    *(Eight*)(weights + (tap * C2 + filter) * X + c) = ((const Eight*)filters)[i];
  }
  for (int i = threadIdx.x; i < H * W; i += blockDim.x) pixels[i] = image[i];
  for (int i = threadIdx.x; i < HIGH * WIDE * A / 8; i += blockDim.x) ((Eight*)gradients)[i] = Eight{};
  __syncthreads();
  scatter(handed, gradients, WIDE, 2);
  __syncthreads();
  float sums[TILES][4][4] = {};
#pragma unroll
  for (int t = 0; t < TILES; t++) {
    int tile = begin + warp + t * 8, place = tile * 16 + lane / 8 % 2 * 8 + lane % 8;
    if (tile >= end) break;
    place = place < AREA ? place : 0;
    const Real* row = gradients + ((place / W1 + 2) * WIDE + place % W1 + 2) * A + lane / 16 * 8;
    unsigned a[2][4], b[2][8];  // as in second_layer
#pragma unroll
    for (int turn = 0; turn <= TAPS * 4; turn++) {
      int tap = turn / 4, k = turn % 4 * 16, now = turn % 2;
      if (turn < TAPS * 4) {
        const Real* column = weights + (tap * C2 + k + lane / 8 % 2 * 8 + lane % 8) * X + lane / 16 * 8;
        load_rows(a[now], row - (tap / 3 * WIDE + tap % 3) * A + k);
        load_matrices(b[now], column);
        load_matrices(b[now] + 4, column + 16);
      }
      if (turn)
#pragma unroll
        for (int n = 0; n < 4; n++) multiply(sums[t][n], a[1 - now], b[1 - now] + n * 2);
    }
  }
  __syncthreads();  // the weights make room
  float* results = (float*)weights;
#pragma unroll
  for (int t = 0; t < TILES; t++) {
    int tile = warp + t * 8;
    if (begin + tile >= end) break;
#pragma unroll
    for (int i = 0; i < 16; i++)
      results[(tile * 16 + lane / 4 + i / 2 % 2 * 8) * 33 + i / 4 * 8 + lane % 4 * 2 + i % 2] = sums[t][i / 4][i % 4];
  }
  __syncthreads();
  float own[TAPS + 1] = {};
#pragma unroll
  for (int n = 0; n < TILES * 16; n++) {
    int at = warp + n * 8, place = begin * 16 + at, choice = choices[n];
    if (at >= last) break;
    float gradient = choice == 4 ? 0.0f : results[at * 33 + lane];
    choice = choice == 4 ? 0 : choice;
    const float* corner = pixels + (place / W1 * 2 + choice / 2) * W + place % W1 * 2 + choice % 2;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) own[tap] += gradient * corner[tap / 3 * W + tap % 3];
    own[TAPS] += gradient;
  }
  float* across = (float*)gradients;
#pragma unroll
  for (int k = 0; k <= TAPS; k++) across[(warp * (TAPS + 1) + k) * 32 + lane] = own[k];
  __syncthreads();
  for (int i = threadIdx.x; i < FIRST; i += blockDim.x) {
    int k = i < TAPS * C1 ? i % TAPS : TAPS, c = i < TAPS * C1 ? i / TAPS : i - TAPS * C1;
    float total = 0.0f;
    for (int w = 0; w < 8; w++) total += across[(w * (TAPS + 1) + k) * 32 + c];
    parts[i] = total;
  }
}

// blockIdx.y: 0 the second layer's filters, 1 and on the shares of the places for the first layer's.
extern "C" __global__ void __launch_bounds__(256, 2) layers_back(
    const float* images, const Real* x, const signed char* chosen, const Real* grad, const signed char* which,
    const Real* filters, float* first_parts, float* second_parts) {
  extern __shared__ float shared[];
  int image = blockIdx.x;
  x += image * AREA * C1, chosen += image * AREA * C1, grad += image * FEATURES, which += image * FEATURES;
  if (blockIdx.y == 0) {
    Real* gradients = (Real*)shared;
    Real* inputs = gradients + (PIXELS + 15) / 16 * 16 * (C2 + 8);
    filters_back(x, grad, which, second_parts + image * SECOND, gradients, inputs);
    return;
  }
  constexpr int ALL = (AREA + 15) / 16, EACH = (ALL + SHARES - 1) / SHARES;
  int share = blockIdx.y - 1, begin = share * EACH, end = begin + EACH < ALL ? begin + EACH : ALL;
  Real *weights = (Real*)shared, *gradients = weights + TAPS * C2 * (C1 + 8);
  float* pixels = (float*)(gradients + (H1 + 2) * (W1 + 2) * (C2 + 8));
  inputs_back(grad, which, filters, images + image * H * W, chosen, first_parts + (image * SHARES + share) * FIRST,
              begin, end, gradients, weights, pixels);
}

// Sums over rows of partial sums, times the scale; the hidden weights' gradient only times that.
extern "C" __global__ void totals(
    const float* first, const float* second, const float* last, const float* weights, const float* scale, float* out,
    int first_rows, int second_rows, int last_rows) {
  __shared__ float across[8][32];
  constexpr int BLOCKS1 = (FIRST + 31) / 32, BLOCKS2 = (SECOND + 31) / 32, BLOCKS3 = (LAST + 31) / 32;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x, rows = first_rows, columns = FIRST;
  float factor = scale[0];
  const float* matrix = first;
  if (block >= BLOCKS1 + BLOCKS2 + BLOCKS3) {
    int i = (block - BLOCKS1 - BLOCKS2 - BLOCKS3) * 256 + threadIdx.x;
    if (i >= F * FEATURES / 4) return;
    Four values = ((const Four*)weights)[i];
#pragma unroll
    for (int k = 0; k < 4; k++) values.at[k] *= factor;
    ((Four*)out)[i] = values;
    return;
  }
  out += F * FEATURES;
  if (block >= BLOCKS1 + BLOCKS2)
    block -= BLOCKS1 + BLOCKS2, matrix = last, rows = last_rows, columns = LAST, out += FIRST + SECOND;
  else if (block >= BLOCKS1)
    block -= BLOCKS1, matrix = second, rows = second_rows, columns = SECOND, out += FIRST;
  int column = block * 32 + lane;
  float total = 0.0f;
  if (column < columns)
#pragma unroll 8
    for (int row = warp; row < rows; row += 8) total += matrix[row * columns + column];
  across[warp][lane] = total;
  __syncthreads();
  if (warp || column >= columns) return;
  for (int other = 1; other < 8; other++) total += across[other][lane];
  out[column] = total * factor;
}
