"""The gradient of an embedding: the rows of a batch that belong to one token summed, always in the same order.

Which rows these are is sorted on the host, an epoch at a time. Shapes: T rows, H columns, S sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seatrial.train.kernels.nvrtc import EIGHT, REALS, launch, usable

TEXT = """
constexpr int EACH = (H / 8 + 31) / 32;
// A block makes one sum: rows order[begins[n]] … order[begins[n + 1] - 1], into row n of sums.
extern "C" __global__ void token_sums(const Real* rows, const int* order, const int* begins, Real* sums, int add) {
  __shared__ float across[8][H];
  int begin = begins[blockIdx.x], end = begins[blockIdx.x + 1];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float total[EACH][8] = {};
  for (int i = begin + warp; i < end; i += 8) {
    const Real* row = rows + (long long)order[i] * H;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int column = (e * 32 + lane) * 8;
      if (column >= H) continue;
      Eight own = *(const Eight*)(row + column);
#pragma unroll
      for (int k = 0; k < 8; k++) total[e][k] += number(own.at[k]);
    }
  }
#pragma unroll
  for (int e = 0; e < EACH; e++)
#pragma unroll
    for (int k = 0; k < 8; k++)
      if ((e * 32 + lane) * 8 < H) across[warp][(e * 32 + lane) * 8 + k] = total[e][k];
  __syncthreads();
  for (int column = threadIdx.x; column < H; column += blockDim.x) {
    float sum = 0.0f;
    for (int other = 0; other < 8; other++) sum += across[other][column];
    Real* to = sums + (long long)blockIdx.x * H + column;
    *to = real(add ? sum + number(*to) : sum);
  }
}
"""


def source(dtype: torch.dtype, width: int) -> str:
    """The kernel's text."""
    return f"{REALS[dtype]}{EIGHT}constexpr int H = {width};\n{TEXT}"


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
