"""Batch normalisation in training with its neighbours: a 2×2 max-pool before it, or a sum after it, and ReLU or GELU.

torch reads a layer's output five times on the way and seven times back; here it is two and four. Bytes move in pieces
of 16, several in flight for each thread; the factors of a channel stay in its thread's registers.
``norm_act`` takes a sum and knows no fp16: in bf16 two kernels each way, whose blocks add to one total in fp64 as they
end; in fp32 a third adds in a fixed order. ``pooled_norm_act`` takes a pool, which makes the normalisation's sums as
well; its gradient is written once.
Shapes: B images, C channels, H and W pixels, R partial sums; channels last. Places: pixels that are normalised.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import FORMATS, KernelModule, cdiv, channels_last, differentiable, module
from seatrial.train.kernels.runtime import THREADS

#: Blocks that sum over pixels: two for each multiprocessor of a large GPU (H200: 132).
MAX_BLOCKS = 264
#: Channels, and those whose blocks add to one total: the sums of more would exceed a block's 48 KB.
MAX_CHANNELS, MAX_ADDED = 2048, 1024
#: Pixels of one thread where a result is written.
EACH = 4
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2}


def fits(norm: nn.Module) -> bool:
    """Return True if the kernels know such a layer: factors and running statistics, a width that divides a block."""
    if type(norm) is not nn.BatchNorm2d or not norm.affine or not norm.track_running_stats or norm.momentum is None:
        return False
    channels = norm.num_features
    return channels <= MAX_CHANNELS and channels % 32 == 0 and THREADS % (channels // 8) == 0


def blocks_over(places: int, channels: int) -> int:
    """Return the blocks for sums over so many places: four for a thread of eight channels if there are many."""
    return max(1, min(MAX_BLOCKS, cdiv(places * channels, 32 * THREADS)))


def adds_atomically(dtype: torch.dtype, channels: int) -> bool:
    """Return True if blocks add to one total in the order in which they end: in fp64, to be rounded."""
    return dtype == torch.bfloat16 and channels <= MAX_ADDED


def norm_act_module(dtype: torch.dtype, channels: int, activation: str) -> KernelModule:
    """Return the kernels for one format, width and activation."""
    constants = {"C": channels, "ACT": ACTIVATIONS[activation], "EACH": EACH}
    return module("norm_act.cu", dtype, **constants, ATOMIC=adds_atomically(dtype, channels))


class Totals:
    """Zeros in fp64 for one call of a layer: [2, C] for its sums forward, and as many for those backward.

    ``current``: those of the backward pass are still zero, and nobody else's.
    """

    def __init__(self, zeros_22C: Tensor) -> None:
        self.zeros, self.current = zeros_22C, True

    def back(self) -> Tensor:
        """Return these zeros for the first backward pass; later new ones, for a graph can be gone through twice."""
        found = self.zeros[1] if self.current else torch.zeros_like(self.zeros[1])
        self.current = False
        return found


def _norm_act(
    x: Tensor, weight: Tensor, bias: Tensor, beside: Tensor | None,
    *, norm: nn.BatchNorm2d, activation: str, totals: Totals,
) -> Any:  # fmt: skip
    channels, pixels, items = x.shape[1], x.numel() // x.shape[1], x.numel() // 8
    kernels, blocks = norm_act_module(x.dtype, channels, activation), blocks_over(pixels, channels)
    parts = _parts(x, blocks)
    kernels.launch("wide_moments", blocks, x, parts, totals.zeros[0], pixels)
    _total(kernels, parts, totals.zeros[0])
    table, out = torch.empty(4, channels, device=x.device), channels_last(tuple(x.shape), x, x.dtype)
    mask = torch.empty(items, dtype=torch.uint8, device=x.device) if beside is not None else None
    statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    buffers = (x, beside, totals.zeros[0], weight, bias, table, *statistics, out, mask)
    numbers = (items, pixels, norm.eps, float(norm.momentum or 0.0))
    kernels.launch("normalised", cdiv(items, THREADS * EACH), *buffers, *numbers)
    return out, (x, table, mask), {"kernels": kernels, "totals": totals}


def _norm_act_back(
    needs: Any, grad: Tensor, x: Tensor, table: Tensor, mask: Tensor | None, *, kernels: KernelModule, totals: Totals
) -> Any:
    grad = grad.contiguous(memory_format=torch.channels_last)
    channels, pixels, items = x.shape[1], x.numel() // x.shape[1], x.numel() // 8
    blocks, sums = blocks_over(pixels, channels), totals.back()
    beside = channels_last(tuple(x.shape), x, x.dtype) if mask is not None else None
    parts = _parts(x, blocks)
    kernels.launch("gradient_sums", blocks, grad, x, mask, table, beside, parts, sums, pixels)
    _total(kernels, parts, sums)
    own, dx = torch.empty(2, channels, device=x.device), channels_last(tuple(x.shape), x, x.dtype)
    buffers = (grad if beside is None else beside, x, table, sums, own, dx)
    numbers = (items, pixels, int(beside is not None))
    kernels.launch("gradient_of_x", cdiv(items, THREADS * EACH), *buffers, *numbers)
    return dx, own[0], own[1], beside


#: activation(normalised x + beside), updates statistics: x and beside [B, C, H, W] channels last, the others [C]. With
#: ``beside`` the activation is ReLU or none.
norm_act = differentiable(_norm_act, _norm_act_back)


def _parts(x: Tensor, blocks: int) -> Tensor | None:
    """Allocate the sums of each block, [R, 2, C]; None if blocks add to the totals."""
    return None if adds_atomically(x.dtype, x.shape[1]) else torch.empty(blocks, 2, x.shape[1], device=x.device)


def _total(kernels: KernelModule, parts: Tensor | None, totals: Tensor) -> None:
    if parts is not None:
        kernels.launch("total_rows", 2 * parts.shape[2] // 32, parts, totals, len(parts))


def pooled_modules(dtype: torch.dtype, channels: int, activation: str) -> tuple[KernelModule, KernelModule]:
    """Return the kernels for one format, width and activation, and those that make its table."""
    constants = {"C": channels, "ACT": ACTIVATIONS[activation], "EACH": EACH}
    return module("pooled_norm.cu", dtype, **constants), module("norm_table.cu", dtype, C=channels)


def _pooled(x: Tensor, weight: Tensor, bias: Tensor, *, norm: nn.BatchNorm2d, activation: str, pools: bool) -> Any:
    rows, channels, height, width = x.shape
    size = (rows, channels, height // 2, width // 2) if pools else (rows, channels, height, width)
    places, items = rows * size[2] * size[3], rows * size[2] * size[3] * channels // 8
    blocks, (kernels, table_kernels) = blocks_over(places, channels), pooled_modules(x.dtype, channels, activation)
    parts = torch.empty(blocks, 2, channels, device=x.device)
    normal, which = x, None
    if pools:
        normal, which = channels_last(size, x, x.dtype), channels_last(size, x, torch.int8)
        kernels.launch("pooled_moments", blocks, x, normal, which, parts, places, height, width)
    else:
        kernels.launch("plain_moments", blocks, x, parts, places)
    table, out = torch.empty(4, channels, device=x.device), channels_last(size, x, x.dtype)
    statistics = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    numbers = (blocks, places, norm.eps, float(norm.momentum or 0.0))
    table_kernels.launch("normalise", channels // 32, parts, normal, weight, bias, table, *statistics, *numbers)
    kernels.launch("normalised", cdiv(items, THREADS * EACH), normal, table, out, items)
    return out, (normal, which, table), {"size": (height, width), "activation": activation}


def _pooled_back(
    needs: Any, grad: Tensor, normal: Tensor, which: Tensor | None, table: Tensor,
    *, size: tuple[int, int], activation: str,
) -> Any:  # fmt: skip
    grad = grad.contiguous(memory_format=torch.channels_last)
    (rows, channels), (height, width), dtype = normal.shape[:2], size, normal.dtype
    places, (kernels, table_kernels) = normal.numel() // channels, pooled_modules(dtype, channels, activation)
    blocks = blocks_over(places, channels)
    parts = torch.empty(blocks, 2, channels, device=normal.device)
    kernels.launch("gradient_sums", blocks, grad, normal, table, parts, places)
    own, back = (torch.empty(2, channels, device=normal.device) for _ in range(2))
    table_kernels.launch("normalise_back", channels // 32, parts, table, own, back, blocks, places)
    dx = channels_last((rows, channels, height, width), normal, dtype)
    if which is None:
        items = normal.numel() // 8
        kernels.launch("gradient_of_x", cdiv(items, THREADS * EACH), grad, normal, table, back, dx, items)
    else:
        items = rows * cdiv(height, 2) * cdiv(width, 2) * (channels // 8)
        buffers = (grad, normal, which, table, back, dx)
        kernels.launch("gradient_unpooled", cdiv(items, 2 * THREADS), *buffers, items, height, width)
    return dx, own[0], own[1]


_pooled_norm_act = differentiable(_pooled, _pooled_back)


def pooled_norm_act(x: Tensor, norm: nn.BatchNorm2d, activation: str, *, pools: bool = False) -> Tensor:
    """Compute activation(norm(x)), of its 2×2 max-pool if it ``pools``: by these kernels on a GPU, else by torch's."""
    known = x.dtype in FORMATS and x.numel() < 2**31 and min(x.shape[2:]) >= 2
    known = known and x.is_contiguous(memory_format=torch.channels_last)
    if runtime.usable(x.device) and known and fits(norm):
        if norm.training and torch.is_grad_enabled():
            return _pooled_norm_act(x, norm.weight, norm.bias, norm=norm, activation=activation, pools=pools)
        if not norm.training and not torch.is_grad_enabled():
            return _evaluated(x, norm, activation, pools=pools)
    x = norm(F.max_pool2d(x, 2) if pools else x)
    return F.gelu(x) if activation == "gelu" else F.relu(x)


def _evaluated(x: Tensor, norm: nn.BatchNorm2d, activation: str, *, pools: bool) -> Tensor:
    """Compute the same with running statistics, by one kernel."""
    rows, channels, height, width = x.shape
    size = (rows, channels, height // 2, width // 2) if pools else (rows, channels, height, width)
    out = channels_last(size, x, x.dtype)
    buffers = (x, norm.running_mean, norm.running_var, norm.weight, norm.bias, out)
    items, (kernels, _) = out.numel() // 8, pooled_modules(x.dtype, channels, activation)
    kernels.launch("evaluated", cdiv(items, THREADS), *buffers, items, height, width, int(pools), norm.eps)
    return out
