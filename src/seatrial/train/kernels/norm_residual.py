"""Layer normalisation with what stands around it in a Transformer, bias, dropout and sum: one kernel each way.

y = norm(dropout(x + bias) + residual). Backwards the sums over rows (bias, gain, shift) are made in parts of some rows,
in a fixed order. A warp takes a row; every read of it is under way before the first is waited for, and the dropout is
computed meanwhile. Shapes: T rows (tokens), H columns, R parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seatrial.train.kernels import dropout, runtime
from seatrial.train.kernels.ops import KernelModule, module

#: Rows of a block: a warp each.
ROWS = 8
#: Rows that a block takes at a time backwards: one or more for each warp.
TILE = ROWS
#: Blocks backwards, each with a part of the sums: two for each multiprocessor of a large GPU (H200: 132).
MOST_PARTS = 264


def kernels(dtype: torch.dtype, width: int, share: float) -> KernelModule:
    """The kernels for rows of so many columns and a share to drop."""
    return module("norm_residual.cu", dtype, H=width, TILE=TILE, **dropout.constants(share))


def forward(
    x_TH: Tensor, bias_H: Tensor, residual_TH: Tensor, gain_H: Tensor, shift_H: Tensor,
    keys: Tensor, place: int, share: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y [T, H], the normalised rows [T, H] and 1 / deviation [T]. ``bias``, ``gain`` and ``shift`` are fp32."""
    rows, width = x_TH.shape
    y, hat, scale = torch.empty_like(x_TH), torch.empty_like(x_TH), torch.empty(rows, device=x_TH.device)
    if runtime.usable(x_TH.device):
        given = (x_TH, bias_H, residual_TH, gain_H, shift_H, keys, place, float(epsilon), y, hat, scale, rows)
        kernels(x_TH.dtype, width, share).launch("norm_forward", -(-rows // ROWS), *given)
        return y, hat, scale
    value = (x_TH.float() + bias_H) * dropout.mask(keys[place], _numbers(x_TH), share) + residual_TH.float()
    return _normalised(value, gain_H, shift_H, epsilon, x_TH.dtype)


def embed(
    tokens_T: Tensor, positions_T: Tensor, tables: tuple[Tensor, Tensor, Tensor], gain_H: Tensor, shift_H: Tensor,
    keys: Tensor, place: int, share: float, epsilon: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same for dropout(norm(words[token] + places[position] + kinds[0])), of three tables; numbers are int32."""
    words, places, kinds = tables
    rows, width = len(tokens_T), words.shape[1]
    if runtime.usable(words.device):
        y = torch.empty(rows, width, dtype=dtype, device=words.device)
        hat, scale = torch.empty_like(y), torch.empty(rows, device=words.device)
        given = (tokens_T, positions_T, words, places, kinds, gain_H, shift_H, keys, place, float(epsilon))
        kernels(dtype, width, share).launch("embed_forward", -(-rows // ROWS), *given, y, hat, scale, rows)
        return y, hat, scale
    value = words[tokens_T.long()] + places[positions_T.long()] + kinds[0]
    y, hat, scale = _normalised(value, gain_H, shift_H, epsilon, torch.float32)
    return (y * dropout.mask(keys[place], _numbers(y), share)).to(dtype), hat.to(dtype), scale


def backward(
    dy_TH: Tensor, normed: Sequence[Tensor], gain_H: Tensor, keys: Tensor, place: int, share: float,
    *, after: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dz [T, H], dx [T, H] and parts [R, 3 H] of the gradients of bias, gain and shift.

    Args:
        normed: what the forward pass gave in addition to y.
        after: dropout came after the normalisation; dx is dz then.
    """
    hat_TH, scale_T = normed
    rows, width = dy_TH.shape
    if runtime.usable(dy_TH.device):
        dz = torch.empty_like(dy_TH)
        dx = None if after or dropout.bound(share) == 0 else torch.empty_like(dy_TH)
        blocks = min(MOST_PARTS, -(-rows // TILE))
        parts = torch.empty(blocks, 3 * width, device=dy_TH.device)
        name, results = ("embed_backward", (dz,)) if after else ("norm_backward", (dz, dx))
        given = (dy_TH, hat_TH, scale_T, gain_H, keys, place, *results, parts, rows)
        kernels(dy_TH.dtype, width, share).launch(name, blocks, *given)
        return dz, dz if dx is None else dx, parts
    dropped, dy, hat = dropout.mask(keys[place], _numbers(dy_TH), share), dy_TH.float(), hat_TH.float()
    dy = dy * dropped if after else dy
    g = dy * gain_H
    exact = (g - g.mean(1, keepdim=True) - hat * (g * hat).mean(1, keepdim=True)) * scale_T[:, None]
    exact_dx = exact if after else exact * dropped
    parts = torch.cat([exact_dx.sum(0), (dy * hat).sum(0), dy.sum(0)])[None]
    return exact.to(dy_TH.dtype), exact_dx.to(dy_TH.dtype), parts


def _numbers(rows_TH: Tensor) -> Tensor:
    return torch.arange(rows_TH.numel(), device=rows_TH.device).view_as(rows_TH)


def _normalised(
    value_TH: Tensor, gain_H: Tensor, shift_H: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    mean = value_TH.mean(1, keepdim=True)
    scale = (value_TH.var(1, correction=0, keepdim=True) + epsilon).rsqrt()
    hat = (value_TH - mean) * scale
    return (hat * gain_H + shift_H).to(dtype), hat.to(dtype), scale.view(-1)
