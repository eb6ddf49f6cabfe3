"""Adam for every tensor of a small model in one launch: 3 µs where torch's fused kernel takes 10 for each group (H200).

Shapes: T tensors with parameter, gradient and two moments each; a block updates a piece of one of them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import THREADS, launch, usable

#: Tensors of one launch: their addresses must fit in the 4 KB of its arguments (CUDA programming guide).
MOST_TENSORS = 64
#: Elements of one thread.
EACH = 4
#: Parameter group and its parameters, gradients, first and second moments.
Group = tuple[dict[str, Any], tuple[list[Tensor], ...]]

SOURCE = """
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
"""


def takes(groups: list[Group], device: torch.device) -> bool:
    """Whether one launch can update all of these: few fp32 tensors on a GPU, one learning rate, betas and epsilon."""
    if not usable(device) or not groups:
        return False
    first = groups[0][0]
    alike = all(
        group["lr"] is first["lr"] and (group["betas"], group["eps"]) == (first["betas"], first["eps"])
        for group, _ in groups
    )
    tensors = [tensor for _, kinds in groups for kind in kinds for tensor in kind]
    few = len(tensors) <= 4 * MOST_TENSORS and isinstance(first["lr"], Tensor)
    return alike and few and all(tensor.dtype == torch.float32 for tensor in tensors)


def update(groups: list[Group], done: Tensor, *, decoupled: bool) -> None:
    """Update the parameters and their moments.

    Args:
        done: steps with this one, a scalar on the device. decoupled: weight decay as AdamW has it.
    """
    tensors: list[Tensor] = []
    pieces: list[tuple[int, float]] = []
    for group, kinds in groups:
        for quadruple in zip(*kinds, strict=True):
            tensors += quadruple
            pieces.append((quadruple[0].numel(), float(group["weight_decay"])))
    group = groups[0][0]
    beta1, beta2 = map(float, group["betas"])
    numbers = (beta1, beta2, math.log(beta1), math.log(beta2), float(group["eps"]), int(decoupled))
    blocks = sum(blocks_of(size) for size, _ in pieces)
    launch(source(tuple(pieces)), "adam", blocks, (*tensors, done, group["lr"], *numbers))


@lru_cache
def source(pieces: tuple[tuple[int, float], ...]) -> str:
    """The kernel's text for tensors of these sizes and weight decays."""
    pointers, lines, before = [], [], 0
    for n, (size, decay) in enumerate(pieces):
        pointers.append(f"float* p{n}, const float* g{n}, float* m{n}, float* v{n}")
        picked = f"p = p{n}, g = g{n}, m = m{n}, v = v{n}, n = {size}, decay = {decay!r}, first = blockIdx.x - {before}"
        lines.append(f"if (blockIdx.x >= {before}) {picked};")
        before += blocks_of(size)
    text = SOURCE.replace("POINTERS", ",\n    ".join(pointers)).replace("TENSORS", "\n  ".join(lines))
    return text.replace("EACH", str(EACH))


def blocks_of(size: int) -> int:
    """Blocks that a tensor of so many elements takes."""
    return -(-size // (THREADS * EACH))
