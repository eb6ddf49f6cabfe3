"""Kernels of BERT over packed texts: attention, normalisation with dropout and sum, GELU, gradients of embeddings.

Every token attends to those of its own text, with no padding between, on Tensor Cores. Normalisation, bias, dropout and
sum are one kernel each way, and so is GELU with its bias; sums over rows are made in parts, always in the same order.
Shapes: T tokens (rows) of all texts, N texts, W columns, H heads, D = 64 numbers a head, R parts, S sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import KernelModule, cdiv, module

# Dropout: its mask is a function of two 31-bit keys, drawn on the device for each step and place, and of an element's
# number. So it is computed where it is needed, forward and back, and never stored. The hash is triple32
# (https://nullprogram.com/blog/2018/07/31/) with the second key put in after the first of its products.

_WORD = 0xFFFFFFFF


def dropout_constants(share: float) -> dict[str, float]:
    """Return the kernels' constants for a share to drop: the halves of a hash that drop, and the others' factor."""
    bound = round(share * 2**16)
    return {"DROP": bound, "RAISE": 1 / (1 - bound / 2**16)}


def dropout_keys(places: int, device: torch.device) -> Tensor:
    """Draw [places, 2] keys from torch's generator of the device: a captured step draws new ones at each replay."""
    return torch.empty(places, 2, dtype=torch.int32, device=device).random_()


def dropout_mask(key: Tensor, numbers: Tensor, share: float) -> Tensor:
    """Return the kernels' mask: 0 for a dropped element, else its factor; fp32, of the shape of ``numbers``.

    ``key``: [2]. ``numbers``: int64, below 2^32.
    """
    first, second = key.long()
    x = ((numbers >> 1) ^ first) & _WORD
    x = ((x ^ (x >> 17)) * 0xED5AD4BB) & _WORD
    x = x ^ second
    x = ((x ^ (x >> 11)) * 0xAC4C1B51) & _WORD
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _WORD
    x = ((x ^ (x >> 14)) >> (numbers % 2 * 16)) & 0xFFFF
    constants = dropout_constants(share)
    stays: Tensor = x >= constants["DROP"]
    return stays.float() * constants["RAISE"]


# Attention, in bf16; queries, keys and values are [T, 3, H, D]. ------------------------------------------------------

#: Tokens of the longest text that the kernels take, and numbers a head.
LONGEST, HEAD = 128, 64
#: Numbers between two rows in shared memory beyond a head's: then no two rows of a matrix meet in one bank.
SPARE = 8
#: Bytes of shared memory: three matrices of 128 rows; backwards four, the weights, and each warp's sums. Of Hopper's
#: 228 KB two blocks fit.
FORWARD_BYTES = 3 * LONGEST * (HEAD + SPARE) * 2
BACK_BYTES = (4 * LONGEST * (HEAD + SPARE) + LONGEST * (LONGEST + SPARE)) * 2 + 8 * 3 * HEAD * 4


def attention_module(share: float) -> KernelModule:
    """Return the kernels for a share of the weights to drop."""
    return module("attention.cu", torch.bfloat16, **dropout_constants(share))


def attention_blocks(rows: int, texts: int, heads: int) -> int:
    """Return the blocks that texts of together ``rows`` tokens take at most, and some that clear what is behind them.

    A text takes a block for eight heads at least, and for each of its tokens at most a 65th of what one of 65 tokens
    takes beyond that: a block for each head.
    """
    least = cdiv(heads, 8)
    return texts * least + (heads - least) * rows // 65 + heads


def takes_attention(inputs: Tensor, heads: int, longest: int) -> bool:
    """Return whether the kernels take these; otherwise torch's attention runs, padded for it alone."""
    fits = inputs.dtype == torch.bfloat16 and inputs.shape[1] == 3 * heads * HEAD and longest <= LONGEST
    return fits and runtime.usable(inputs.device)


def attention(
    inputs: Tensor, starts: Tensor, heads: int, longest: int, keys: Tensor, place: int, share: float
) -> tuple[Tensor, Tensor]:
    """Compute [T, 3 H D] → [T, H D], and what goes to ``attention_back``.

    Args:
        starts: [N + 1], int32: where each text begins, and where the last one ends; zeros come behind it.
        longest: tokens of the longest text, on the host.
    """
    texts, rows = len(starts) - 1, len(inputs)
    if not takes_attention(inputs, heads, longest):
        with torch.no_grad():
            return _padded_attention(inputs, starts, heads, longest, keys[place], share), starts
    out = torch.empty(rows, heads * HEAD, dtype=inputs.dtype, device=inputs.device)
    logs = torch.empty(rows, heads, device=inputs.device)
    numbers = (place, math.log2(math.e) / math.sqrt(HEAD), out, logs, texts, rows, heads)
    kernels, blocks = attention_module(share), attention_blocks(rows, texts, heads)
    kernels.launch("attention_forward", blocks, inputs, starts, keys, *numbers, shared_bytes=FORWARD_BYTES)
    return out, logs


def attention_back(
    grad: Tensor, inputs: Tensor, logs: Tensor, starts: Tensor, heads: int, longest: int, keys: Tensor,
    place: int, share: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradient of ``inputs`` [T, 3 H D], and its sums over rows in parts [N, 3 H D]."""
    if not takes_attention(inputs, heads, longest):
        with torch.enable_grad():
            own = inputs.detach().requires_grad_()
            again = _padded_attention(own, starts, heads, longest, keys[place], share)
            grads = torch.autograd.grad(again, own, grad)[0]
        return grads, grads.float().sum(0)[None]
    grads, texts, rows = torch.empty_like(inputs), len(starts) - 1, len(inputs)
    parts = torch.empty(texts, inputs.shape[1], device=inputs.device)
    scales = (math.log2(math.e) / math.sqrt(HEAD), 1 / math.sqrt(HEAD))
    given = (grad, inputs, logs, starts, keys, place, *scales, grads, parts, texts, rows, heads)
    kernels, blocks = attention_module(share), attention_blocks(rows, texts, heads)
    kernels.launch("attention_backward", blocks, *given, shared_bytes=BACK_BYTES)
    return grads, parts


def _padded_attention(inputs: Tensor, starts: Tensor, heads: int, longest: int, key: Tensor, share: float) -> Tensor:
    """Compute the same by torch, each text padded to the longest: other number formats and heads, longer texts."""
    texts, rows, device = len(starts) - 1, len(inputs), inputs.device
    begins, lengths = starts[:-1].long(), (starts[1:] - starts[:-1]).long()
    columns = torch.arange(longest, device=device)
    real_NL = columns < lengths[:, None]
    places_NL = torch.where(real_NL, begins[:, None] + columns, rows)  # rows: a row of zeros behind all
    padded = F.pad(inputs, (0, 0, 0, 1)).index_select(0, places_NL.view(-1)).view(texts, longest, 3, heads, -1)
    query, key_, value = padded.permute(2, 0, 3, 1, 4)  # [N, H, L, D]
    scores = (query @ key_.transpose(2, 3)).float() * query.shape[-1] ** -0.5
    shares = scores.masked_fill(~real_NL[:, None, None, :], float("-inf")).softmax(3)
    if share:
        text_head = torch.arange(texts * heads, device=device).view(texts, heads, 1, 1)
        numbers = ((text_head * LONGEST + columns[:, None]) * LONGEST + columns) & _WORD
        shares = shares * dropout_mask(key, numbers, share)
    mixed = (shares.to(inputs.dtype) @ value).transpose(1, 2).reshape(texts * longest, -1)
    result: Tensor = mixed.new_zeros(rows + 1, mixed.shape[1]).index_copy(0, places_NL.view(-1), mixed)
    return result[:rows]


# norm(dropout(x + bias) + residual) ----------------------------------------------------------------------------------

#: Rows of a block, a warp each. Every read of a row is under way before the first is waited for, and the dropout is
#: computed meanwhile.
ROWS = 8
#: Rows that a block takes at a time backwards: one or more for each warp.
TILE = ROWS
#: Blocks backwards, each with a part of the sums: two for each multiprocessor of a large GPU (H200: 132).
MOST_PARTS = 264


def norm_module(dtype: torch.dtype, width: int, share: float) -> KernelModule:
    """Return the kernels for rows of so many columns and a share to drop."""
    return module("norm_residual.cu", dtype, H=width, TILE=TILE, **dropout_constants(share))


def norm_residual(
    x_TW: Tensor, bias_W: Tensor, residual_TW: Tensor, gain_W: Tensor, shift_W: Tensor,
    keys: Tensor, place: int, share: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return y [T, W], the normalised rows [T, W] and 1 / deviation [T]. ``bias``, ``gain`` and ``shift`` are fp32."""
    rows, width = x_TW.shape
    y, hat, scale = torch.empty_like(x_TW), torch.empty_like(x_TW), torch.empty(rows, device=x_TW.device)
    given = (x_TW, bias_W, residual_TW, gain_W, shift_W, keys, place, float(epsilon), y, hat, scale, rows)
    norm_module(x_TW.dtype, width, share).launch("norm_forward", cdiv(rows, ROWS), *given)
    return y, hat, scale


def norm_embedded(
    tokens_T: Tensor, positions_T: Tensor, tables: tuple[Tensor, Tensor, Tensor], gain_W: Tensor, shift_W: Tensor,
    keys: Tensor, place: int, share: float, epsilon: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Do the same for dropout(norm(words[token] + places[position] + kinds[0])), of three tables; numbers: int32."""
    words, places, kinds = tables
    rows, width = len(tokens_T), words.shape[1]
    y = torch.empty(rows, width, dtype=dtype, device=words.device)
    hat, scale = torch.empty_like(y), torch.empty(rows, device=words.device)
    given = (tokens_T, positions_T, words, places, kinds, gain_W, shift_W, keys, place, float(epsilon))
    norm_module(dtype, width, share).launch("embed_forward", cdiv(rows, ROWS), *given, y, hat, scale, rows)
    return y, hat, scale


def norm_back(
    dy_TW: Tensor, normed: Sequence[Tensor], gain_W: Tensor, keys: Tensor, place: int, share: float,
    *, after: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dz [T, W], dx [T, W] and parts [R, 3 W] of the gradients of bias, gain and shift.

    Args:
        normed: what the forward pass gave in addition to y.
        after: dropout came after the normalisation; dx is dz then.
    """
    hat_TW, scale_T = normed
    rows, width = dy_TW.shape
    dz = torch.empty_like(dy_TW)
    dx = None if after or not dropout_constants(share)["DROP"] else torch.empty_like(dy_TW)
    blocks = min(MOST_PARTS, cdiv(rows, TILE))
    parts = torch.empty(blocks, 3 * width, device=dy_TW.device)
    name, results = ("embed_backward", (dz,)) if after else ("norm_backward", (dz, dx))
    given = (dy_TW, hat_TW, scale_T, gain_W, keys, place, *results, parts, rows)
    norm_module(dy_TW.dtype, width, share).launch(name, blocks, *given)
    return dz, dz if dx is None else dx, parts


# GELU with the bias before it; and parts of sums over rows -----------------------------------------------------------

#: Columns of a block: eight for each lane of a warp.
COLUMNS = 256
#: Four for each multiprocessor of a large GPU (H200: 132): all are there at once.
MOST_BLOCKS = 528
#: Sources of parts that one launch sums.
SOURCES = 4


def gelu_module(dtype: torch.dtype) -> KernelModule:
    """Return the kernels for one format."""
    return module("gelu_bias.cu", dtype)


def gelu(x_TW: Tensor, bias_W: Tensor) -> Tensor:
    """Compute gelu(x + bias), by the error function; ``bias`` is fp32."""
    y = torch.empty_like(x_TW)
    gelu_module(x_TW.dtype).launch("gelu_forward", _gelu_grid(x_TW), x_TW, bias_W, y, *x_TW.shape)
    return y


def gelu_back(dy_TW: Tensor, x_TW: Tensor, bias_W: Tensor) -> tuple[Tensor, Tensor]:
    """Write the gradient of x over ``dy``; return parts [R, W] of the gradient of the bias."""
    grid = _gelu_grid(dy_TW)
    parts = torch.empty(grid[1], dy_TW.shape[1], device=dy_TW.device)
    gelu_module(dy_TW.dtype).launch("gelu_backward", grid, dy_TW, x_TW, bias_W, dy_TW, parts, *dy_TW.shape)
    return dy_TW, parts


def _gelu_grid(rows_TW: Tensor) -> tuple[int, int]:
    """Return the groups of columns, and the blocks that share their rows."""
    rows, columns = rows_TW.shape
    groups = cdiv(columns, COLUMNS)
    return groups, max(1, min(MOST_BLOCKS // groups, cdiv(rows, 8)))


def sum_parts(parts: list[Tensor], sums: Tensor, *, add: bool) -> None:
    """Sum the parts over rows, side by side, into ``sums``: added, or written over what is there."""
    filled = [*parts, *parts[:1] * (SOURCES - len(parts))]
    columns = [each.shape[1] for each in parts] + [0] * (SOURCES - len(parts))
    given: tuple[Any, ...] = (*filled, *(len(each) for each in filled), *columns, sums, int(add))
    gelu_module(sums.dtype).launch("sum_parts", cdiv(sum(columns), 32), *given)


# The gradient of an embedding: which rows are of one token is sorted on the host, an epoch at a time -----------------


def token_sums_module(dtype: torch.dtype, width: int) -> KernelModule:
    """Return the kernel for rows of so many columns."""
    return module("embedding_grad.cu", dtype, H=width)


def token_sums(rows_TW: Tensor, order_T: Tensor, begins: Tensor, sums_SW: Tensor, *, add: bool = False) -> None:
    """Add up the rows order[begins[n]] to order[begins[n + 1] - 1] as sum n, with ``add`` onto it, or 0. All int32."""
    given = (rows_TW, order_T, begins, sums_SW, int(add))
    token_sums_module(rows_TW.dtype, rows_TW.shape[1]).launch("token_sums", len(sums_SW), *given)
