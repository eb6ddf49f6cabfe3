"""AdamW over all parameters of a large model in one launch, with what comes before and after it.

Rows of an embedding are updated when somebody looks at them: a batch has a thousand tokens of thirty thousand, and what
the others miss (their moments fade, they decay) is made up for later, step by step, with the same numbers.

Everything lies in flat arrays of n elements: parameters and moments in fp32, gradients in the type of the products. The
gradient's norm is taken before (two launches), its clipping is done in the update, and so is the copy of the weights in
the type of the products: of n parameters 30 bytes a parameter are moved, of 32 and more by separate kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, launch, usable

#: Blocks that sum the squares: four for each multiprocessor of a large GPU (H200: 132).
PARTS = 528
#: Pieces of four elements that a thread updates, all read before the first is computed.
EACH = 2
#: Added to the norm as torch.nn.utils.clip_grad_norm_ does.
TINY = 1e-6

TEXT = """
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
"""


@dataclass(frozen=True)
class Rule:
    """AdamW's numbers."""

    betas: tuple[float, float]
    epsilon: float
    decay: float

    def text(self) -> str:
        """As constants."""
        numbers = {
            "SHARE1": 1 - self.betas[0], "SHARE2": 1 - self.betas[1], "BETA2": self.betas[1], "EPSILON": self.epsilon,
            "DECAY": self.decay, "LOG1": math.log(self.betas[0]), "LOG2": math.log(self.betas[1]),
        }  # fmt: skip
        listed = ", ".join(f"{name} = (float){number!r}" for name, number in numbers.items())
        return f"constexpr float {listed};\nconstexpr int EACH = {EACH};\n"


def source(dtype: torch.dtype, rule: Rule) -> str:
    """The kernels' text for gradients of this type."""
    return REALS[dtype] + EIGHT + rule.text() + TEXT


def clip_factor(gradients: Tensor, most: float, norm: Tensor, rule: Rule) -> None:
    """``norm`` [2]: the gradients' norm, and the factor that brings it down to ``most``, at most 1."""
    if not usable(gradients.device):
        norm[0] = gradients.float().square().sum(dtype=torch.double).sqrt()
        norm[1] = (most / (norm[0] + TINY)).clamp(max=1.0)
        return
    eights, text = gradients.numel() // 8, source(gradients.dtype, rule)
    parts = torch.empty(min(PARTS, -(-eights // THREADS)), device=gradients.device)
    launch(text, "square_parts", len(parts), (gradients, parts, eights))
    launch(text, "clip_factor", 1, (parts, len(parts), float(most), norm))


def update(
    flat: Sequence[Tensor], decayed: int, copied: int, norm: Tensor | None, done: Tensor,
    rate: Tensor, rule: Rule, rules: Tensor | None = None, applied: Tensor | None = None,
) -> None:  # fmt: skip
    """One step of AdamW.

    Args:
        flat: parameters, first and second moments (fp32), gradients, and the copy (in the type of the products).
        decayed: so many of the first elements decay. copied: from here on they are copied. Multiples of 4.
        norm: as ``clip_factor`` makes it. done: steps with this one, on the device.
        rules: [kept, 3]: gets what ``update_rows`` needs to know of this step.
        applied: nothing is done where this is ``done`` already.
    """
    parameters, means, squares, gradients, values = flat
    if usable(parameters.device):
        quads, kept = parameters.numel() // 4, 0 if rules is None else len(rules)
        numbers = (quads, decayed, copied, norm, done, rate, rules, kept, applied)
        blocks = -(-quads // (THREADS * EACH))
        launch(source(gradients.dtype, rule), "adam_flat", blocks, (*flat, *numbers))
        return
    if applied is not None and applied == done:
        return
    step_size = rate / -torch.expm1(done * math.log(rule.betas[0]))
    root = (-torch.expm1(done * math.log(rule.betas[1]))).sqrt()
    if rules is not None:
        rules[int(done) % len(rules)] = torch.stack([rate * rule.decay, step_size, root])
    parameters[:decayed] -= rate * rule.decay * parameters[:decayed]
    _moved(parameters, means, squares, gradients.float() * (1.0 if norm is None else norm[1]), step_size, root, rule)
    values[copied:].copy_(parameters[copied:])


def update_rows(
    table: tuple[Tensor, Tensor, Tensor], gradients_SH: Tensor | None, targets_S: Tensor | None, seen: Tensor,
    norm: Tensor | None, done: Tensor, rules: Tensor, rule: Rule, dtype: torch.dtype,
) -> None:  # fmt: skip
    """Bring rows of a table to step ``done``: first through the steps that they have missed, whose gradients were zero.

    What a dense AdamW does with them, element by element in the same order, but only when somebody looks.

    Args:
        table: parameters and both moments, [V, H] each.
        gradients_SH: of the last step; None: the last step was missed as well.
        targets_S: each one's row; -1: none. None: all rows. seen: [V]: the step that a row is at.
        dtype: of gradients, here or elsewhere: one text for all.
        rules: as ``update`` has written them, for every step since the oldest of ``seen``.
    """
    parameters = table[0]
    if usable(parameters.device):
        count = len(parameters) if targets_S is None else len(targets_S)
        text = source(dtype, rule)
        given = (*table, gradients_SH, targets_S, seen, norm, done, rules, len(rules), parameters.shape[1])
        launch(text, "adam_rows", count, given)
        return
    rows = torch.arange(len(parameters)) if targets_S is None else targets_S[targets_S >= 0].long()
    now = int(done)
    first = int(seen[rows].min()) + 1 if len(rows) else now + 1
    for step in range(first, now + 1):
        behind = rows[seen[rows] < step]
        decay, step_size, root = rules[step % len(rules)]
        own, mean, square = (each[behind] for each in table)
        slopes = torch.zeros_like(own)
        if step == now and gradients_SH is not None and targets_S is not None:
            real = (targets_S >= 0).nonzero().view(-1)
            slopes = gradients_SH[real].float() * (1.0 if norm is None else norm[1])
        own -= decay * own
        _moved(own, mean, square, slopes, step_size, root, rule)
        for each, value in zip(table, (own, mean, square), strict=True):
            each[behind] = value
    seen[rows] = now


def _moved(
    own: Tensor, mean: Tensor, square: Tensor, slopes: Tensor, step_size: Tensor, root: Tensor, rule: Rule
) -> None:
    mean += (1 - rule.betas[0]) * (slopes - mean)
    square.mul_(rule.betas[1]).addcmul_(slopes, slopes, value=1 - rule.betas[1])
    own -= step_size * mean / (square.sqrt() / root + rule.epsilon)
