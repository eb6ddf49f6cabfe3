"""Attention of packed short texts on Tensor Cores, in bf16: every token to those of its own text, no padding between.

Shapes: T tokens of all texts, N texts, H heads, D = 64 numbers a head; queries, keys and values [T, 3, H, D].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.kernels import dropout, runtime
from seatrial.train.kernels.ops import KernelModule, module

#: Tokens of the longest text that the kernels take, and numbers a head.
LONGEST, HEAD = 128, 64
#: Numbers between two rows in shared memory beyond a head's: then no two rows of a matrix meet in one bank.
SPARE = 8
#: Bytes of shared memory: three matrices of 128 rows; backwards four, the weights, and each warp's sums. Of Hopper's
#: 228 KB two blocks fit.
FORWARD_BYTES = 3 * LONGEST * (HEAD + SPARE) * 2
BACK_BYTES = (4 * LONGEST * (HEAD + SPARE) + LONGEST * (LONGEST + SPARE)) * 2 + 8 * 3 * HEAD * 4


def kernels(share: float) -> KernelModule:
    """The kernels for a share of the weights to drop."""
    return module("attention.cu", torch.bfloat16, **dropout.constants(share))


def blocks(rows: int, texts: int, heads: int) -> int:
    """Blocks that texts of together ``rows`` tokens take at most, and some that clear what is behind them.

    A text takes a block for eight heads at least, and for each of its tokens at most a 65th of what one of 65 tokens
    takes beyond that: a block for each head.
    """
    least = -(-heads // 8)
    return texts * least + (heads - least) * rows // 65 + heads


def takes(inputs: Tensor, heads: int, longest: int) -> bool:
    """Return whether the kernels take these; otherwise torch's attention runs, padded for it alone."""
    fits = inputs.dtype == torch.bfloat16 and inputs.shape[1] == 3 * heads * HEAD and longest <= LONGEST
    return fits and runtime.usable(inputs.device)


def forward(
    inputs: Tensor, starts: Tensor, heads: int, longest: int, keys: Tensor, place: int, share: float
) -> tuple[Tensor, Tensor]:
    """[T, 3 H D] → [T, H D], and what goes to ``backward``.

    Args:
        starts: [N + 1], int32: where each text begins, and where the last one ends; zeros come behind it.
        longest: tokens of the longest text, on the host.
    """
    texts, rows = len(starts) - 1, len(inputs)
    if not takes(inputs, heads, longest):
        with torch.no_grad():
            return _torch(inputs, starts, heads, longest, keys[place], share), starts
    out = torch.empty(rows, heads * HEAD, dtype=inputs.dtype, device=inputs.device)
    logs = torch.empty(rows, heads, device=inputs.device)
    numbers = (place, math.log2(math.e) / math.sqrt(HEAD), out, logs, texts, rows, heads)
    given = (inputs, starts, keys, *numbers)
    kernels(share).launch("attention_forward", blocks(rows, texts, heads), *given, shared_bytes=FORWARD_BYTES)
    return out, logs


def backward(
    grad: Tensor, inputs: Tensor, logs: Tensor, starts: Tensor, heads: int, longest: int, keys: Tensor,
    place: int, share: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradient of ``inputs`` [T, 3 H D], and its sums over rows in parts [N, 3 H D]."""
    if not takes(inputs, heads, longest):
        with torch.enable_grad():
            own = inputs.detach().requires_grad_()
            again = _torch(own, starts, heads, longest, keys[place], share)
            grads = torch.autograd.grad(again, own, grad)[0]
        return grads, grads.float().sum(0)[None]
    grads, texts, rows = torch.empty_like(inputs), len(starts) - 1, len(inputs)
    parts = torch.empty(texts, inputs.shape[1], device=inputs.device)
    scales = (math.log2(math.e) / math.sqrt(HEAD), 1 / math.sqrt(HEAD))
    given = (grad, inputs, logs, starts, keys, place, *scales, grads, parts, texts, rows, heads)
    kernels(share).launch("attention_backward", blocks(rows, texts, heads), *given, shared_bytes=BACK_BYTES)
    return grads, parts


def _torch(inputs: Tensor, starts: Tensor, heads: int, longest: int, key: Tensor, share: float) -> Tensor:
    """The same by torch, each text padded to the longest: other number formats, a CPU, longer texts."""
    texts, rows, device = len(starts) - 1, len(inputs), inputs.device
    begins, lengths = starts[:-1].long(), (starts[1:] - starts[:-1]).long()
    if not inputs.is_cuda:  # there the host would wait for it
        longest = int(lengths.max())
    columns = torch.arange(longest, device=device)
    real_NL = columns < lengths[:, None]
    places_NL = torch.where(real_NL, begins[:, None] + columns, rows)  # rows: a row of zeros behind all
    padded = F.pad(inputs, (0, 0, 0, 1)).index_select(0, places_NL.view(-1)).view(texts, longest, 3, heads, -1)
    query, key_, value = padded.permute(2, 0, 3, 1, 4)  # [N, H, L, D]
    scores = (query @ key_.transpose(2, 3)).float() * query.shape[-1] ** -0.5
    shares = scores.masked_fill(~real_NL[:, None, None, :], float("-inf")).softmax(3)
    if share:
        text_head = torch.arange(texts * heads, device=device).view(texts, heads, 1, 1)
        numbers = ((text_head * LONGEST + columns[:, None]) * LONGEST + columns) & 0xFFFFFFFF
        shares = shares * dropout.mask(key, numbers, share)
    mixed = (shares.to(inputs.dtype) @ value).transpose(1, 2).reshape(texts * longest, -1)
    result: Tensor = mixed.new_zeros(rows + 1, mixed.shape[1]).index_copy(0, places_NL.view(-1), mixed)
    return result[:rows]
