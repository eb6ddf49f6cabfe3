#include "real.cuh"
extern "C" __global__ void square_parts(const Eight* gradients, float* parts, int eights) {
  __shared__ float across[256];
  float sum = 0.0f;
#pragma unroll 4
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < eights; i += gridDim.x * blockDim.x) {
    Eight own = gradients[i];
#pragma unroll
    for (int k = 0; k < 8; k++) sum += number(own.at[k]) * number(own.at[k]);
  }
  across[threadIdx.x] = sum;
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < half) across[threadIdx.x] += across[threadIdx.x + half];
  }
  if (threadIdx.x == 0) parts[blockIdx.x] = across[0];
}

// norm [2]: the norm, and what gradients are multiplied by.
extern "C" __global__ void clip_factor(const float* parts, int count, double most, float* norm) {
  __shared__ double across[256];
  double sum = 0.0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
  across[threadIdx.x] = sum;
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if ((int)threadIdx.x < half) across[threadIdx.x] += across[threadIdx.x + half];
  }
  if (threadIdx.x) return;
  norm[0] = sqrtf((float)across[0]);
  float factor = (float)most / (norm[0] + 1e-6f);
  norm[1] = factor < 1.0f ? factor : factor != factor ? factor : 1.0f;
}

struct alignas(16) Quad { float at[4]; };
struct alignas(sizeof(Real) * 4) Small { Real at[4]; };
// What an update at one step does with one element.
struct Rule { float decay, step_size, root; };

__device__ float updated(float x, float* mean, float* square, float slope, const Rule& rule, bool decays) {
  if (decays) x -= rule.decay * x;
  *mean += SHARE1 * (slope - *mean);
  *square = BETA2 * *square + SHARE2 * slope * slope;
  return x - rule.step_size * *mean / (sqrtf(*square) / rule.root + EPSILON);
}

// Below ``decayed`` weights decay; ``values`` is a copy in the type of the products. rules [kept][3]: of this step, for
// the rows that are updated later. applied: nothing is done where it is this step already.
extern "C" __global__ void adam_flat(
    Quad* p, Quad* m, Quad* v, const Small* g, Small* values, int quads, int decayed, int copied, const float* factor,
    const float* done, const float* rate, float* rules, int kept, const float* applied) {
  if (applied && applied[0] == done[0]) return;
  // 1 - beta^done, to fp32's precision also where that is small
  float step_size = rate[0] / -expm1f(done[0] * LOG1), root = sqrtf(-expm1f(done[0] * LOG2));
  Rule rule = {rate[0] * DECAY, step_size, root};
  float times = factor ? factor[1] : 1.0f;
  if (rules && blockIdx.x == 0 && threadIdx.x == 0) {
    float* own = rules + (long long)done[0] % kept * 3;
    own[0] = rule.decay, own[1] = rule.step_size, own[2] = rule.root;
  }
  Quad own[EACH], mean[EACH], square[EACH];
  Small gradient[EACH];
  int first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int i = first + e * blockDim.x;
    if (i < quads) own[e] = p[i], mean[e] = m[i], square[e] = v[i], gradient[e] = g[i];
  }
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int i = first + e * blockDim.x;
    if (i >= quads) break;
    Small value;
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float slope = number(gradient[e].at[k]) * times;
      own[e].at[k] = updated(own[e].at[k], &mean[e].at[k], &square[e].at[k], slope, rule, i * 4 < decayed);
      value.at[k] = real(own[e].at[k]);
    }
    p[i] = own[e], m[i] = mean[e], v[i] = square[e];
    if (i * 4 >= copied) values[i] = value;
  }
}

// Rows of a table, one a block: targets[block] (none: all rows; -1: nothing). First what they have missed since step
// seen[row], with gradients of zero; then, where there are gradients [S, H], this step.
extern "C" __global__ void adam_rows(
    float* p, float* m, float* v, const Real* g, const int* targets, int* seen, const float* factor, const float* done,
    const float* rules, int kept, int H) {
  int row = targets ? targets[blockIdx.x] : blockIdx.x;
  if (row < 0) return;
  int from = seen[row], now = (int)done[0], missed = g ? now - 1 : now;
  float times = factor ? factor[1] : 1.0f;
  __syncthreads();
  if (from >= missed && !g) return;
  for (int column = threadIdx.x; column < H; column += blockDim.x) {
    long long at = (long long)row * H + column;
    float x = p[at], mean = m[at], square = v[at];
    for (int step = from + 1; step <= missed; step++) {
      const float* own = rules + step % kept * 3;
      Rule rule = {own[0], own[1], own[2]};
      if (mean == 0.0f && square == 0.0f)
        x -= rule.decay * x;
      else
        x = updated(x, &mean, &square, 0.0f, rule, true);
    }
    if (g) {
      const float* own = rules + now % kept * 3;
      Rule rule = {own[0], own[1], own[2]};
      x = updated(x, &mean, &square, number(g[(long long)blockIdx.x * H + column]) * times, rule, true);
    }
    p[at] = x, m[at] = mean, v[at] = square;
  }
  if (threadIdx.x == 0) seen[row] = now;
}
