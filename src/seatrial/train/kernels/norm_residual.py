"""Layer normalisation with what stands around it in a Transformer, bias, dropout and sum: one kernel each way.

y = norm(dropout(x + bias) + residual). Backwards the sums over rows (bias, gain, shift) are made in parts of some rows,
in a fixed order. A warp takes a row. Shapes: T rows (tokens), H columns, R parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seatrial.train.kernels import dropout
from seatrial.train.kernels.nvrtc import EIGHT, REALS, launch, usable

#: Rows of a block: a warp each.
ROWS = 8
#: Blocks backwards, each with a part of the sums: two for each multiprocessor of a large GPU (H200: 132).
MOST_PARTS = 264

TEXT = """
constexpr int EACH = (H / 8 + 31) / 32;
struct alignas(16) Numbers { float at[8]; };
__device__ float warp_sum(float value) {
  for (int other = 16; other; other /= 2) value += __shfl_xor_sync(0xffffffff, value, other);
  return value;
}

// Normalises v, a row's elements of this lane; writes y and the normalised row before gain and shift.
__device__ void finish(
    float (*v)[8], const float* gain, const float* shift, double epsilon, Real* y, Real* hat, float* scale, int row,
    bool inside, const int* key) {
  int lane = threadIdx.x % 32;
  float sum = 0.0f, squares = 0.0f;
#pragma unroll
  for (int e = 0; e < EACH; e++)
#pragma unroll
    for (int k = 0; k < 8; k++) sum += v[e][k];
  float mean = warp_sum(sum) / H;
#pragma unroll
  for (int e = 0; e < EACH; e++)
#pragma unroll
    for (int k = 0; k < 8; k++)
      if ((e * 32 + lane) * 8 < H) squares += (v[e][k] - mean) * (v[e][k] - mean);
  float inverse = 1.0f / sqrtf(warp_sum(squares) / H + (float)epsilon);
  if (!inside) return;
  if (lane == 0) scale[row] = inverse;
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int column = (e * 32 + lane) * 8;
    if (column >= H) continue;
    Eight normed, result;
    Numbers times = *(const Numbers*)(gain + column), plus = *(const Numbers*)(shift + column);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float value = (v[e][k] - mean) * inverse;
      normed.at[k] = real(value);
      v[e][k] = value * times.at[k] + plus.at[k];
    }
    if (key) drop(v[e], key, (unsigned)row * H + column);
#pragma unroll
    for (int k = 0; k < 8; k++) result.at[k] = real(v[e][k]);
    *(Eight*)(hat + (long long)row * H + column) = normed;
    *(Eight*)(y + (long long)row * H + column) = result;
  }
}

extern "C" __global__ void norm_forward(
    const Real* x, const float* bias, const Real* residual, const float* gain, const float* shift, const int* keys,
    int place, double epsilon, Real* y, Real* hat, float* scale, int rows) {
  int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
  const int* key = keys + 2 * place;
  float v[EACH][8] = {};
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int column = (e * 32 + lane) * 8;
    if (column >= H || row >= rows) continue;
    Eight own = *(const Eight*)(x + (long long)row * H + column);
    Eight beside = *(const Eight*)(residual + (long long)row * H + column);
    Numbers plus = *(const Numbers*)(bias + column);
#pragma unroll
    for (int k = 0; k < 8; k++) v[e][k] = number(own.at[k]) + plus.at[k];
    drop(v[e], key, (unsigned)row * H + column);
#pragma unroll
    for (int k = 0; k < 8; k++) v[e][k] += number(beside.at[k]);
  }
  finish(v, gain, shift, epsilon, y, hat, scale, row, row < rows, nullptr);
}

// The sum of three embeddings, normalised, then dropped out.
extern "C" __global__ void embed_forward(
    const int* tokens, const int* positions, const float* words, const float* places, const float* kinds,
    const float* gain, const float* shift, const int* keys, int place, double epsilon, Real* y, Real* hat, float* scale,
    int rows) {
  int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
  const int* key = keys + 2 * place;
  int token = row < rows ? tokens[row] : 0, position = row < rows ? positions[row] : 0;
  float v[EACH][8] = {};
#pragma unroll
  for (int e = 0; e < EACH; e++) {
    int column = (e * 32 + lane) * 8;
    if (column >= H) continue;
    Numbers word = *(const Numbers*)(words + (long long)token * H + column);
    Numbers at = *(const Numbers*)(places + position * H + column), kind = *(const Numbers*)(kinds + column);
#pragma unroll
    for (int k = 0; k < 8; k++) v[e][k] = word.at[k] + at.at[k] + kind.at[k];
  }
  finish(v, gain, shift, epsilon, y, hat, scale, row, row < rows, key);
}

// dz: the gradient of what is normalised; dx (where dropout came before): that of x + bias. After: dropout came after.
// parts [gridDim.x][3][H]: sums over rows of the gradients of bias, gain and shift.
extern "C" __global__ void norm_backward(
    const Real* dy, const Real* hat, const float* scale, const float* gain, const int* keys, int place, int after,
    Real* dz, Real* dx, float* parts, int rows) {
  __shared__ float across[8][H];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int* key = keys + 2 * place;
  float biases[EACH][8] = {}, gains[EACH][8] = {}, shifts[EACH][8] = {};
  for (int first = blockIdx.x * 8; first < rows; first += gridDim.x * 8) {
    int row = first + warp;
    float g[EACH][8] = {}, h[EACH][8] = {}, sum = 0.0f, product = 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int column = (e * 32 + lane) * 8;
      if (column >= H || row >= rows) continue;
      Eight own = *(const Eight*)(dy + (long long)row * H + column);
      Eight normed = *(const Eight*)(hat + (long long)row * H + column);
      Numbers times = *(const Numbers*)(gain + column);
#pragma unroll
      for (int k = 0; k < 8; k++) g[e][k] = number(own.at[k]);
      if (after) drop(g[e], key, (unsigned)row * H + column);
#pragma unroll
      for (int k = 0; k < 8; k++) {
        h[e][k] = number(normed.at[k]);
        gains[e][k] += g[e][k] * h[e][k];
        shifts[e][k] += g[e][k];
        g[e][k] *= times.at[k];
        sum += g[e][k];
        product += g[e][k] * h[e][k];
      }
    }
    sum = warp_sum(sum) / H;
    product = warp_sum(product) / H;
    float inverse = row < rows ? scale[row] : 0.0f;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int column = (e * 32 + lane) * 8;
      if (column >= H || row >= rows) continue;
      Eight result, dropped;
#pragma unroll
      for (int k = 0; k < 8; k++) {
        g[e][k] = (g[e][k] - sum - h[e][k] * product) * inverse;
        result.at[k] = real(g[e][k]);
      }
      if (!after) drop(g[e], key, (unsigned)row * H + column);
#pragma unroll
      for (int k = 0; k < 8; k++) {
        dropped.at[k] = real(g[e][k]);
        biases[e][k] += g[e][k];
      }
      *(Eight*)(dz + (long long)row * H + column) = result;
      if (dx) *(Eight*)(dx + (long long)row * H + column) = dropped;
    }
  }
  parts += (long long)blockIdx.x * 3 * H;
#pragma unroll
  for (int which = 0; which < 3; which++) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int column = (e * 32 + lane) * 8;
#pragma unroll
      for (int k = 0; k < 8; k++)
        if (column < H) across[warp][column + k] = which == 0 ? biases[e][k] : which == 1 ? gains[e][k] : shifts[e][k];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < H; column += blockDim.x) {
      float total = 0.0f;
      for (int other = 0; other < 8; other++) total += across[other][column];
      parts[which * H + column] = total;
    }
  }
}
"""


def source(dtype: torch.dtype, width: int, share: float) -> str:
    """The kernels' text for rows of so many columns and a share to drop."""
    numbers = f"constexpr int H = {width};\n{dropout.constants(share)}"
    return f"{REALS[dtype]}{EIGHT}{numbers}{dropout.TEXT}{TEXT}"


def forward(
    x_TH: Tensor, bias_H: Tensor, residual_TH: Tensor, gain_H: Tensor, shift_H: Tensor,
    keys: Tensor, place: int, share: float, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y [T, H], the normalised rows [T, H] and 1 / deviation [T]. ``bias``, ``gain`` and ``shift`` are fp32."""
    rows, width = x_TH.shape
    y, hat, scale = torch.empty_like(x_TH), torch.empty_like(x_TH), torch.empty(rows, device=x_TH.device)
    if usable(x_TH.device):
        given = (x_TH, bias_H, residual_TH, gain_H, shift_H, keys, place, float(epsilon), y, hat, scale, rows)
        launch(source(x_TH.dtype, width, share), "norm_forward", -(-rows // ROWS), given)
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
    if usable(words.device):
        y = torch.empty(rows, width, dtype=dtype, device=words.device)
        hat, scale = torch.empty_like(y), torch.empty(rows, device=words.device)
        given = (tokens_T, positions_T, words, places, kinds, gain_H, shift_H, keys, place, float(epsilon))
        launch(source(dtype, width, share), "embed_forward", -(-rows // ROWS), (*given, y, hat, scale, rows))
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
        normed: what the forward pass gave beside y.
        after: dropout came after the normalisation; dx is dz then.
    """
    hat_TH, scale_T = normed
    rows, width = dy_TH.shape
    if usable(dy_TH.device):
        dz = torch.empty_like(dy_TH)
        dx = None if after or share == 0 else torch.empty_like(dy_TH)
        blocks = min(MOST_PARTS, -(-rows // ROWS))
        parts = torch.empty(blocks, 3 * width, device=dy_TH.device)
        given = (dy_TH, hat_TH, scale_T, gain_H, keys, place, int(after), dz, dx, parts, rows)
        launch(source(dy_TH.dtype, width, share), "norm_backward", blocks, given)
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
