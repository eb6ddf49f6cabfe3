extern "C" __global__ void nesterov(POINTERS, double momentum) {
  float *p, *m, decay;
  const float *g, *rate;
  int n, first;
  TENSORS
  first = first * blockDim.x * EACH + threadIdx.x;
  for (int k = 0; k < EACH; k++) {
    int i = first + k * blockDim.x;
    if (i >= n) break;
    float gradient = g[i] + decay * p[i], buffer = (float)momentum * m[i] + gradient;
    m[i] = buffer;
    p[i] -= rate[0] * (gradient + (float)momentum * buffer);
  }
}
