"""Dropout whose mask is computed where it is needed, forward and back, from a key and an element's number.

None is kept in memory. A mask is a function of two 31-bit keys, drawn on the device for each step and place, and of the
element's number. The hash is triple32 (https://nullprogram.com/blog/2018/07/31/) with the second key put in after the
first of its products.
"""

from __future__ import annotations

import torch
from torch import Tensor

TEXT = """
// Of elements 2 n and 2 n + 1: the lower and the upper half.
__device__ unsigned hashed(const int* key, unsigned x) {
  x ^= (unsigned)key[0];
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= (unsigned)key[1];
  x ^= x >> 11;
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  return x ^ x >> 14;
}
// Which of eight neighbours, from an even one on, stay: a bit each.
__device__ unsigned kept_of_eight(const int* key, unsigned first) {
  if (DROP == 0) return 0xff;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < 8; k += 2) {
    unsigned both = hashed(key, first / 2 + k / 2);
    bits |= (unsigned)((both & 0xffff) >= DROP) << k | (unsigned)(both >> 16 >= DROP) << (k + 1);
  }
  return bits;
}
// What is dropped becomes 0, the others are raised.
__device__ float dropped(float value, unsigned bits, int k) {
  return DROP == 0 ? value : bits >> k & 1 ? value * RAISE : 0.0f;
}
"""
_WORD = 0xFFFFFFFF


def constants(share: float) -> str:
    """The text's constants for a share of elements to drop."""
    return f"constexpr unsigned DROP = {bound(share)}u;\nconstexpr float RAISE = {scale(share)!r}f;\n"


def bound(share: float) -> int:
    """Halves of a hash below it are dropped."""
    return round(share * 2**16)


def scale(share: float) -> float:
    """What is kept is multiplied by this."""
    return 1 / (1 - bound(share) / 2**16)


def keys(places: int, device: torch.device) -> Tensor:
    """[places, 2] fresh keys, from torch's generator of the device: a captured step draws new ones at each replay."""
    return torch.empty(places, 2, dtype=torch.int32, device=device).random_()


def mask(key: Tensor, numbers: Tensor, share: float) -> Tensor:
    """What the kernels compute: 0 where an element is dropped, else ``scale``; fp32, of the shape of ``numbers``.

    Args:
        key: [2]. numbers: int64, below 2^32.
    """
    first, second = key.long()
    x = ((numbers >> 1) ^ first) & _WORD
    x = ((x ^ (x >> 17)) * 0xED5AD4BB) & _WORD
    x = x ^ second
    x = ((x ^ (x >> 11)) * 0xAC4C1B51) & _WORD
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _WORD
    x = ((x ^ (x >> 14)) >> (numbers % 2 * 16)) & 0xFFFF
    stays: Tensor = x >= bound(share)
    return stays.float() * scale(share)
