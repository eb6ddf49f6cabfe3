// Python fills in the pointers of some tensors and the lines that pick a block's tensor.
extern "C" __global__ void adam(
    POINTERS, const float* done, const float* rate, double beta1, double beta2, double log1, double log2,
    double epsilon, int decoupled) {
  float *p, *m, *v, decay;
  const float* g;
  int n, first;
  TENSORS
  first = first * blockDim.x * EACH + threadIdx.x;
  float own[EACH], gradient[EACH], mean[EACH], square[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int i = first + k * blockDim.x;
    if (i < n) own[k] = p[i], gradient[k] = g[i], mean[k] = m[i], square[k] = v[i];
  }
  // 1 - beta^done, to fp32's precision also where that is small
  float step_size = rate[0] / -expm1f(done[0] * (float)log1), root = sqrtf(-expm1f(done[0] * (float)log2));
  float share1 = (float)(1.0 - beta1), share2 = (float)(1.0 - beta2);
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int i = first + k * blockDim.x;
    if (i >= n) break;
    if (decoupled)
      own[k] -= rate[0] * decay * own[k];
    else
      gradient[k] += decay * own[k];
    m[i] = mean[k] += share1 * (gradient[k] - mean[k]);
    v[i] = square[k] = (float)beta2 * square[k] + share2 * gradient[k] * gradient[k];
    p[i] = own[k] - step_size * mean[k] / (sqrtf(square[k]) / root + (float)epsilon);
  }
}
