"""A sum with dropout of the second summand, in one kernel each way; nothing is kept but a seed.

torch takes three kernels on the way and two back, and keeps a mask. Numbers are drawn by Philox-4x32 with ten rounds
(Salmon and others 2011, "Parallel random numbers: as easy as 1, 2, 3"), keyed by a seed that torch draws on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, launch, refuse_second_derivatives, usable

TEXT = """
struct Four { unsigned at[4]; };
__device__ Four philox(unsigned counter, unsigned key0, unsigned key1) {
  unsigned a = counter, b = 0, c = 0, d = 0;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    unsigned long long left = 0xD2511F53ull * a, right = 0xCD9E8D57ull * c;
    unsigned first = (unsigned)(right >> 32) ^ b ^ key0, third = (unsigned)(left >> 32) ^ d ^ key1;
    b = (unsigned)right, d = (unsigned)left, a = first, c = third;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return {a, b, c, d};
}

// A bit for each of eight numbers that stay.
__device__ unsigned staying(int place, const long long* seed, unsigned least) {
  unsigned bits = 0, key0 = (unsigned)seed[0], key1 = (unsigned)(seed[0] >> 32);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    Four drawn = philox(2u * place + half, key0, key1);
#pragma unroll
    for (int i = 0; i < 4; i++) bits |= (drawn.at[i] >= least ? 1u : 0u) << (4 * half + i);
  }
  return bits;
}

template <class Number> struct alignas(16) Numbers { Number at[8]; };

extern "C" __global__ void drop_add(
    const Numbers<Sum>* x, const Numbers<Dropped>* y, const long long* seed, Numbers<Sum>* out, int total, int least,
    double factor) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  Numbers<Sum> values = x[thread];
  Numbers<Dropped> others = y[thread];
  unsigned bits = staying(thread, seed, (unsigned)least);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float more = bits >> i & 1 ? dropped_number(others.at[i]) * (float)factor : 0.0f;
    values.at[i] = sum_real(sum_number(values.at[i]) + more);
  }
  out[thread] = values;
}

extern "C" __global__ void drop_back(
    const Numbers<Sum>* grad, const long long* seed, Numbers<Dropped>* dy, int total, int least, double factor) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= total) return;
  Numbers<Sum> gradients = grad[thread];
  Numbers<Dropped> result;
  unsigned bits = staying(thread, seed, (unsigned)least);
#pragma unroll
  for (int i = 0; i < 8; i++)
    result.at[i] = dropped_real(bits >> i & 1 ? sum_number(gradients.at[i]) * (float)factor : 0.0f);
  dy[thread] = result;
}
"""
_NUMBERS = {
    torch.float32: "typedef float {0};\n__device__ float {1}_number(float x) {{ return x; }}\n"
    "__device__ float {1}_real(float x) {{ return x; }}\n",
    torch.bfloat16: "typedef unsigned short {0};\n__device__ float {1}_number({0} x) {{ return number(x); }}\n"
    "__device__ {0} {1}_real(float x) {{ return real(x); }}\n",
}


def source(sum_type: torch.dtype, dropped: torch.dtype) -> str:
    """The text for one format of the sum and one of what is dropped out."""
    kinds = _NUMBERS[sum_type].format("Sum", "sum") + _NUMBERS[dropped].format("Dropped", "dropped")
    return f"{REALS[torch.bfloat16]}{EIGHT}{kinds}{TEXT}"


def drop_add(x: Tensor, y: Tensor, probability: float) -> Tensor:
    """``x + dropout(y)`` in training: by kernels where they fit what comes, else by torch."""
    alike = isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and x.device == y.device
    known = alike and x.dtype in REALS and y.dtype in REALS and torch.promote_types(x.dtype, y.dtype) == x.dtype
    sizes = known and x.is_contiguous() and y.is_contiguous() and x.numel() % 8 == 0 and 0 < x.numel() < 2**31
    placed = sizes and x.data_ptr() % 16 == 0 and y.data_ptr() % 16 == 0 and 0.0 < probability < 1.0
    if not placed or not torch.is_grad_enabled() or not usable(x.device):
        return x + F.dropout(y, probability, True)
    if torch._C._are_functorch_transforms_active():
        return x + F.dropout(y, probability, True)
    return DropAdd.apply(x, y, probability)  # type: ignore[no-any-return, no-untyped-call]


class DropAdd(torch.autograd.Function):
    """x + dropout(y), of one shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, probability: float) -> Tensor:
        seed, out, items = torch.randint(0, 2**62, (1,), device=x.device), torch.empty_like(x), x.numel() // 8
        ctx.kinds, ctx.numbers = (x.dtype, y.dtype), (items, _least(probability), 1 / (1 - probability))
        launch(source(*ctx.kinds), "drop_add", -(-items // THREADS), (x, y, seed, out, *ctx.numbers))
        ctx.save_for_backward(seed)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        (seed,), grad = ctx.saved_tensors, grads[0].contiguous()
        dy = torch.empty_like(grad, dtype=ctx.kinds[1])
        launch(source(*ctx.kinds), "drop_back", -(-ctx.numbers[0] // THREADS), (grad, seed, dy, *ctx.numbers))
        return grads[0], dy, None


def _least(probability: float) -> int:
    """What a drawn number of 32 bits must reach to stay, as an int of C."""
    least = min(round(probability * 2**32), 2**32 - 1)
    return least - 2**32 if least >= 2**31 else least
