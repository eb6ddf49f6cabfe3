"""AdamW over all parameters of a large model in one launch, with what comes before and after it.

Everything lies in flat arrays of n elements: parameters and moments in fp32, gradients in the type of the products. The
gradient's norm is taken before (two launches), its clipping is done in the update, and so is the copy of the weights in
the type of the products: of n parameters 30 bytes a parameter are moved, of 32 and more by separate kernels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, launch, usable

#: Blocks that sum the squares: four for each multiprocessor of a large GPU (H200: 132).
PARTS = 528
#: Added to the norm as torch.nn.utils.clip_grad_norm_ does.
TINY = 1e-6

TEXT = """
struct alignas(16) Four { float at[4]; };

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

// Below ``decayed`` weights decay; from ``copied`` on (a multiple of 8) they are copied to ``values``.
extern "C" __global__ void adam_flat(
    Four* p, Four* m, Four* v, const Eight* g, Eight* values, int eights, int decayed, int copied, const float* factor,
    const float* done, const float* rate, double beta1, double beta2, double log1, double log2, double epsilon,
    double decay) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= eights) return;
  Four own[2], mean[2], square[2];
  Eight gradient = g[i], value;
#pragma unroll
  for (int h = 0; h < 2; h++) own[h] = p[2 * i + h], mean[h] = m[2 * i + h], square[h] = v[2 * i + h];
  // 1 - beta^done, to fp32's precision also where that is small
  float step_size = rate[0] / -expm1f(done[0] * (float)log1), root = sqrtf(-expm1f(done[0] * (float)log2));
  float share1 = (float)(1.0 - beta1), share2 = (float)(1.0 - beta2), times = factor ? factor[1] : 1.0f;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    float &x = own[k / 4].at[k % 4], &a = mean[k / 4].at[k % 4], &b = square[k / 4].at[k % 4];
    float slope = number(gradient.at[k]) * times;
    if (i * 8 < decayed) x -= rate[0] * (float)decay * x;
    a += share1 * (slope - a);
    b = (float)beta2 * b + share2 * slope * slope;
    x -= step_size * a / (sqrtf(b) / root + (float)epsilon);
    value.at[k] = real(x);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) p[2 * i + h] = own[h], m[2 * i + h] = mean[h], v[2 * i + h] = square[h];
  if (i * 8 >= copied) values[i] = value;
}
"""


def source(dtype: torch.dtype) -> str:
    """The kernels' text for gradients of this type."""
    return REALS[dtype] + EIGHT + TEXT


def clip_factor(gradients: Tensor, most: float, norm: Tensor) -> None:
    """``norm`` [2]: the gradients' norm, and the factor that brings it down to ``most``, at most 1."""
    if not usable(gradients.device):
        norm[0] = gradients.float().square().sum(dtype=torch.double).sqrt()
        norm[1] = (most / (norm[0] + TINY)).clamp(max=1.0)
        return
    eights = gradients.numel() // 8
    parts = torch.empty(min(PARTS, -(-eights // THREADS)), device=gradients.device)
    launch(source(gradients.dtype), "square_parts", len(parts), (gradients, parts, eights))
    launch(source(gradients.dtype), "clip_factor", 1, (parts, len(parts), float(most), norm))


def update(
    flat: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], decayed: int, copied: int, norm: Tensor | None, done: Tensor,
    rate: Tensor, betas: tuple[float, float], epsilon: float, decay: float,
) -> None:  # fmt: skip
    """One step of AdamW.

    Args:
        flat: parameters, first and second moments (fp32), gradients, and the copy (in the type of the products).
        decayed: so many of the first elements decay. copied: from here on they are copied. Multiples of 8.
        norm: as ``clip_factor`` makes it. done: steps with this one, on the device.
    """
    parameters, means, squares, gradients, values = flat
    if usable(parameters.device):
        eights = parameters.numel() // 8
        logs = (math.log(betas[0]), math.log(betas[1]))
        numbers = (eights, decayed, copied, norm, done, rate, *map(float, betas), *logs, float(epsilon), float(decay))
        launch(source(gradients.dtype), "adam_flat", -(-eights // THREADS), (*flat, *numbers))
        return
    slopes = gradients.float() * (1.0 if norm is None else norm[1])
    parameters[:decayed] -= rate * decay * parameters[:decayed]
    means += (1 - betas[0]) * (slopes - means)
    squares.mul_(betas[1]).addcmul_(slopes, slopes, value=1 - betas[1])
    step_size = rate / -torch.expm1(done * math.log(betas[0]))
    root = (-torch.expm1(done * math.log(betas[1]))).sqrt()
    parameters -= step_size * means / (squares.sqrt() / root + epsilon)
    values[copied:].copy_(parameters[copied:])
