"""The gradient of an embedding: the rows of a batch that belong to one token summed, always in the same order.

Which rows these are is sorted on the host, an epoch at a time. Shapes: T rows, H columns, S sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import EIGHT, NUMBERS, REALS, launch, usable

#: Rows that a thread reads before it waits.
AHEAD = 4

TEXT = """
constexpr int EIGHTS = H / 8, GROUPS = EIGHTS > 128 ? 1 : EIGHTS > 64 ? 2 : EIGHTS > 32 ? 4 : 8;
// A block makes one sum: rows order[begins[n]] … order[begins[n + 1] - 1], into row n of sums. A thread keeps to eight
// columns; a group of threads takes a row.
extern "C" __global__ void token_sums(
    const Real* __restrict__ rows, const int* __restrict__ order, const int* __restrict__ begins,
    Real* __restrict__ sums, int add) {
  __shared__ Numbers across[GROUPS][EIGHTS];
  int end = begins[blockIdx.x + 1], eight = threadIdx.x % EIGHTS, group = threadIdx.x / EIGHTS;
  Numbers total = {};
  for (int first = begins[blockIdx.x] + group; first < end && group < GROUPS; first += GROUPS * AHEAD) {
    Eight own[AHEAD];
#pragma unroll
    for (int n = 0; n < AHEAD; n++) {
      int i = first + n * GROUPS;
      own[n] = i < end ? *(const Eight*)(rows + (long long)order[i] * H + eight * 8) : Eight{};
    }
#pragma unroll
    for (int n = 0; n < AHEAD; n++) {
      Numbers more = numbers(own[n]);
#pragma unroll
      for (int k = 0; k < 8; k++) total.at[k] += more.at[k];
    }
  }
  if (group < GROUPS) across[group][eight] = total;
  __syncthreads();
  if (group) return;
  for (int other = 1; other < GROUPS; other++)
    for (int k = 0; k < 8; k++) total.at[k] += across[other][eight].at[k];
  Eight* to = (Eight*)(sums + (long long)blockIdx.x * H) + eight;
  Numbers there = add ? numbers(*to) : Numbers{};
  Eight result;
#pragma unroll
  for (int k = 0; k < 8; k++) result.at[k] = real(total.at[k] + there.at[k]);
  *to = result;
}
"""


def source(dtype: torch.dtype, width: int) -> str:
    """The kernel's text."""
    return f"{REALS[dtype]}{EIGHT}{NUMBERS}constexpr int H = {width}, AHEAD = {AHEAD};\n{TEXT}"


def token_sums(rows_TH: Tensor, order_T: Tensor, begins: Tensor, sums_SH: Tensor, *, add: bool = False) -> None:
    """Sum n is that of the rows order[begins[n]] to order[begins[n + 1] - 1]; of none it is 0. All of int32.

    Args:
        add: to what is there.
    """
    if usable(rows_TH.device):
        given = (rows_TH, order_T, begins, sums_SH, int(add))
        launch(source(rows_TH.dtype, rows_TH.shape[1]), "token_sums", len(sums_SH), given)
        return
    counts = begins[1:] - begins[:-1]
    of_row = torch.repeat_interleave(torch.arange(len(sums_SH)), counts.long())
    rows = rows_TH.index_select(0, order_T[: len(of_row)].long()).float()
    found = torch.zeros(sums_SH.shape).index_add_(0, of_row, rows)
    sums_SH.copy_(found + sums_SH if add else found)
