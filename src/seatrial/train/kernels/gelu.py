"""GELU with the bias before it; sums over rows of gradients, in parts; and those parts summed into a layer's gradients.

Shapes: T rows (tokens), C columns, R parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import KernelModule, module

#: Columns of a block: eight for each lane of a warp.
COLUMNS = 256
#: Four for each multiprocessor of a large GPU (H200: 132): all are there at once.
MOST_BLOCKS = 528
#: Sources of parts that one launch sums.
SOURCES = 4


def kernels(dtype: torch.dtype) -> KernelModule:
    """The kernels for one format."""
    return module("gelu_bias.cu", dtype)


def forward(x_TC: Tensor, bias_C: Tensor) -> Tensor:
    """gelu(x + bias), by the error function; ``bias`` is fp32."""
    if not runtime.usable(x_TC.device):
        return F.gelu(x_TC.float() + bias_C).to(x_TC.dtype)
    y = torch.empty_like(x_TC)
    kernels(x_TC.dtype).launch("gelu_forward", _grid(x_TC), x_TC, bias_C, y, *x_TC.shape)
    return y


def backward(dy_TC: Tensor, x_TC: Tensor, bias_C: Tensor) -> tuple[Tensor, Tensor]:
    """Write the gradient of x over ``dy``; return parts [R, C] of the gradient of the bias."""
    if runtime.usable(dy_TC.device):
        return dy_TC, _parts(dy_TC, x_TC, bias_C)
    z = x_TC.float() + bias_C
    slope = 0.5 * (1 + torch.erf(z * 0.5**0.5)) + z * torch.exp(-0.5 * z * z) * 0.3989422804014327
    exact = dy_TC.float() * slope
    return dy_TC.copy_(exact), exact.sum(0)[None]


def _parts(dy_TC: Tensor, x_TC: Tensor, bias_C: Tensor) -> Tensor:
    grid = _grid(dy_TC)
    parts = torch.empty(grid[1], dy_TC.shape[1], device=dy_TC.device)
    kernels(dy_TC.dtype).launch("gelu_backward", grid, dy_TC, x_TC, bias_C, dy_TC, parts, *dy_TC.shape)
    return parts


def _grid(rows_TC: Tensor) -> tuple[int, int]:
    """Groups of columns, and blocks that share their rows."""
    rows, columns = rows_TC.shape
    groups = -(-columns // COLUMNS)
    return groups, max(1, min(MOST_BLOCKS // groups, -(-rows // 8)))


def sum_parts(parts: list[Tensor], sums: Tensor, *, add: bool) -> None:
    """The parts' sums over rows, side by side, into ``sums``: added, or written over what is there."""
    if not runtime.usable(sums.device):
        found = torch.cat([each.sum(0) for each in parts])
        sums.copy_(found + sums.float() if add else found)
        return
    filled = [*parts, *parts[:1] * (SOURCES - len(parts))]
    columns = [each.shape[1] for each in parts] + [0] * (SOURCES - len(parts))
    given: tuple[Any, ...] = (*filled, *(len(each) for each in filled), *columns, sums, int(add))
    kernels(sums.dtype).launch("sum_parts", -(-sum(columns) // 32), *given)
