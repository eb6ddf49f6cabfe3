"""Dropout whose mask is computed where it is needed, forward and back, from a key and an element's number.

None is kept in memory. A mask is a function of two 31-bit keys, drawn on the device for each step and place, and of the
element's number. The hash is triple32 (https://nullprogram.com/blog/2018/07/31/) with the second key put in after the
first of its products.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def constants(share: float) -> dict[str, float]:
    """The kernels' constants for a share of elements to drop."""
    return {"DROP": bound(share), "RAISE": scale(share)}


def bound(share: float) -> int:
    """Halves of a hash below it are dropped."""
    return round(share * 2**16)


def scale(share: float) -> float:
    """Return the factor of the kept elements."""
    return 1 / (1 - bound(share) / 2**16)


def keys(places: int, device: torch.device) -> Tensor:
    """[places, 2] fresh keys, from torch's generator of the device: a captured step draws new ones at each replay."""
    return torch.empty(places, 2, dtype=torch.int32, device=device).random_()


def mask(key: Tensor, numbers: Tensor, share: float) -> Tensor:
    """Return the kernels' mask: 0 for a dropped element, else ``scale``; fp32, of the shape of ``numbers``.

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
