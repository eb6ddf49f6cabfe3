"""The gradient of an embedding: the rows of a batch that belong to one token summed, always in the same order.

Which rows these are is sorted on the host, an epoch at a time. Shapes: T rows, H columns, S sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import KernelModule, module


def kernels(dtype: torch.dtype, width: int) -> KernelModule:
    """The kernel for rows of so many columns."""
    return module("embedding_grad.cu", dtype, H=width)


def token_sums(rows_TH: Tensor, order_T: Tensor, begins: Tensor, sums_SH: Tensor, *, add: bool = False) -> None:
    """Sum n adds the rows order[begins[n]] to order[begins[n + 1] - 1]; an empty sum is 0. All are int32.

    Args:
        add: to what is there.
    """
    if runtime.usable(rows_TH.device):
        given = (rows_TH, order_T, begins, sums_SH, int(add))
        kernels(rows_TH.dtype, rows_TH.shape[1]).launch("token_sums", len(sums_SH), *given)
        return
    counts = begins[1:] - begins[:-1]
    of_row = torch.repeat_interleave(torch.arange(len(sums_SH)), counts.long())
    rows = rows_TH.index_select(0, order_T[: len(of_row)].long()).float()
    found = torch.zeros(sums_SH.shape).index_add_(0, of_row, rows)
    sums_SH.copy_(found + sums_SH if add else found)
