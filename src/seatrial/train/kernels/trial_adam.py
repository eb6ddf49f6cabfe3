"""AdamW for the stacked tensors of several trials in one launch, each trial with its own rate and decay.

It moves 28 bytes a parameter and computes next to nothing, so a thread takes four neighbours at once.
Shapes: T trials; a tensor is [T, …], a block updates a piece of one trial's part of it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import THREADS, launch, usable

#: Tensors of one launch: their addresses must fit in the 4 KB of its arguments (CUDA programming guide).
MOST_TENSORS = 64
#: Elements of one thread: 16 bytes.
EACH = 4

SOURCE = """
struct alignas(16) Four { float at[4]; };
__device__ Four four(const float* from, int i, int n) {
  if (n % 4 == 0) return *(const Four*)(from + i);
  Four result = {};
  for (int k = 0; k < 4 && i + k < n; k++) result.at[k] = from[i + k];
  return result;
}
__device__ void put(float* to, int i, int n, Four values) {
  if (n % 4 == 0)
    *(Four*)(to + i) = values;
  else
    for (int k = 0; k < 4 && i + k < n; k++) to[i + k] = values.at[k];
}
extern "C" __global__ void trial_adam(
    POINTERS, const float* done, const float* rates, const float* decays, double beta1, double beta2, double log1,
    double log2, double epsilon) {
  float *p, *m, *v, decay = 0.0f, rate = rates[blockIdx.y];
  const float* g;
  int n, first, decaying;
  TENSORS
  long long before = (long long)blockIdx.y * n;
  int i = (first * blockDim.x + threadIdx.x) * 4;
  if (i >= n) return;
  p += before, g += before, m += before, v += before;
  if (decaying) decay = decays[blockIdx.y];
  Four own = four(p, i, n), gradient = four(g, i, n), mean = four(m, i, n), square = four(v, i, n);
  // 1 - beta^done, to fp32's precision also where that is small
  float step_size = rate / -expm1f(done[0] * (float)log1), root = sqrtf(-expm1f(done[0] * (float)log2));
  float share1 = (float)(1.0 - beta1), share2 = (float)(1.0 - beta2);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    own.at[k] -= rate * decay * own.at[k];
    mean.at[k] += share1 * (gradient.at[k] - mean.at[k]);
    square.at[k] = (float)beta2 * square.at[k] + share2 * gradient.at[k] * gradient.at[k];
    own.at[k] -= step_size * mean.at[k] / (sqrtf(square.at[k]) / root + (float)epsilon);
  }
  put(p, i, n, own), put(m, i, n, mean), put(v, i, n, square);
}
"""


def takes(kinds: list[list[Tensor]], device: torch.device) -> bool:
    """Whether one launch can update all of these: few fp32 tensors on a GPU."""
    tensors = [tensor for kind in kinds for tensor in kind]
    few = 0 < len(tensors) <= 4 * MOST_TENSORS
    return few and usable(device) and all(tensor.dtype == torch.float32 for tensor in tensors)


def update(
    kinds: list[list[Tensor]], done: Tensor, rates_T: Tensor, decays_T: Tensor, betas: tuple[float, float], eps: float
) -> None:
    """Update parameters and moments.

    Args:
        kinds: parameters, gradients, first and second moments, element by element in one order.
        done: steps with this one, a scalar on the device.
        decays_T: decoupled, of tensors with more than one dimension within a trial.
    """
    tensors = [tensor for four in zip(*kinds, strict=True) for tensor in four]
    trials = len(rates_T)
    pieces = tuple((each.numel() // trials, each.ndim > 2) for each in kinds[0])
    numbers = (*betas, math.log(betas[0]), math.log(betas[1]), eps)
    blocks = sum(blocks_of(size) for size, _ in pieces)
    launch(source(pieces), "trial_adam", (blocks, trials), (*tensors, done, rates_T, decays_T, *numbers))


@lru_cache
def source(pieces: tuple[tuple[int, bool], ...]) -> str:
    """The kernel's text for one trial's parts of these sizes, which decay or do not."""
    pointers, lines, before = [], [], 0
    for n, (size, decays) in enumerate(pieces):
        pointers.append(f"float* p{n}, const float* g{n}, float* m{n}, float* v{n}")
        picked = f"p = p{n}, g = g{n}, m = m{n}, v = v{n}, n = {size}, decaying = {int(decays)}"
        lines.append(f"if (blockIdx.x >= {before}) {picked}, first = blockIdx.x - {before};")
        before += blocks_of(size)
    return SOURCE.replace("POINTERS", ",\n    ".join(pointers)).replace("TENSORS", "\n  ".join(lines))


def blocks_of(size: int) -> int:
    """Blocks that one trial's part of so many elements takes."""
    return -(-size // (THREADS * EACH))
