"""Muon for all filters of a network, and Nesterov's SGD for its other parameters, in few launches.

An update of the recipe cifar10 was some 200 operations of torch; here it is 15 launches for six convolutions and one
for its biases and head: 0.1 ms on an H200. Matrices of different sizes lie in one batch, filled up with zeros, which
stay zeros in each product.
Shapes: T tensors, each a matrix of R rows (its outputs) and N columns as they lie in memory; M the largest R, L the
largest N.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from seatrial.train.kernels.adam import EACH, blocks_of
from seatrial.train.kernels.nvrtc import REALS, launch, usable

#: Tensors of one launch: with three addresses each they must fit in the 4 KB of its arguments (CUDA programming guide).
MOST_TENSORS = 64

ROWS = """
__device__ void sum_block(float* sums, int count) {
  __shared__ float across[2][8];
  for (int k = 0; k < count; k++) {
    for (int other = 16; other; other /= 2) sums[k] += __shfl_xor_sync(0xffffffff, sums[k], other);
    if (threadIdx.x % 32 == 0) across[k][threadIdx.x / 32] = sums[k];
  }
  __syncthreads();
  for (int k = 0; k < count; k++) {
    sums[k] = 0.0f;
    for (int warp = 0; warp < 8; warp++) sums[k] += across[k][warp];
  }
}
// The root of the sum of some rows' squares.
__device__ float norm_of(const float* squares, int rows) {
  float sum[1] = {};
  for (int row = threadIdx.x; row < rows; row += blockDim.x) sum[0] += squares[row];
  sum_block(sum, 1);
  return sqrtf(sum[0]);
}

// A block for a row. updates [T][M][L], squares [T][2][M]: of the update's rows and of the parameter's.
extern "C" __global__ void momentum_rows(POINTERS, Real* updates, float* squares, double momentum) {
  float *p, *m;
  const float* g;
  int rows, columns, tensor, row;
  TENSORS
  float sums[2] = {}, share = (float)momentum;
  p += row * columns, g += row * columns, m += row * columns, updates += (tensor * M + row) * L;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    float gradient = g[i], buffer = share * m[i] + gradient;
    m[i] = buffer;
    float update = gradient + share * buffer;
    updates[i] = real(update);
    sums[0] += update * update;
    sums[1] += p[i] * p[i];
  }
  sum_block(sums, 2);
  if (threadIdx.x == 0) squares[tensor * 2 * M + row] = sums[0], squares[tensor * 2 * M + M + row] = sums[1];
}

extern "C" __global__ void unit_rows(Real* updates, const float* squares) {
  int rows, columns, tensor, row;
  PLACES
  float factor = 1.0f / (norm_of(squares + tensor * 2 * M, rows) + 1e-7f);
  updates += (tensor * M + row) * L;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) updates[i] = real(number(updates[i]) * factor);
}

// Each matrix is brought to norm √rows and moved against its update.
extern "C" __global__ void update_rows(POINTERS, const Real* updates, const float* squares, const float* rate) {
  float *p, *m;
  const float* g;
  int rows, columns, tensor, row;
  TENSORS
  float factor = sqrtf((float)rows) / norm_of(squares + tensor * 2 * M + M, rows);
  p += row * columns, updates += (tensor * M + row) * L;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) p[i] = p[i] * factor - rate[0] * number(updates[i]);
}
"""
SGD = """
extern "C" __global__ void nesterov(POINTERS, double momentum) {
  float *p, *m, decay;
  const float *g, *rate;
  int n, first;
  TENSORS
  first = first * blockDim.x * EACH + threadIdx.x;
  for (int k = 0; k < EACH; k++) {
    int i = first + k * blockDim.x;
    if (i >= n) break;
    float gradient = g[i] + decay * p[i], buffer = (float)momentum * m[i] + gradient;
    m[i] = buffer;
    p[i] -= rate[0] * (gradient + (float)momentum * buffer);
  }
}
"""


@dataclass
class Matrices:
    """Where the updates of one group of filters lie while they are worked on.

    Attributes:
        updates_TML: bf16, zeros beyond each matrix.
        squares: [T, 2, M].
        diagonal_MM: the identity times the iteration's first coefficient.
    """

    updates_TML: Tensor
    squares: Tensor
    diagonal_MM: Tensor

    @classmethod
    def of(cls, sizes: tuple[tuple[int, int], ...], device: torch.device, first: float) -> Matrices:
        """Room for matrices of these sizes."""
        most, longest = max(rows for rows, _ in sizes), max(columns for _, columns in sizes)
        updates = torch.zeros(len(sizes), most, longest, dtype=torch.bfloat16, device=device)
        squares = torch.zeros(len(sizes), 2, most, device=device)
        return cls(updates, squares, torch.eye(most, dtype=torch.bfloat16, device=device) * first)


def takes(parameters: list[Tensor]) -> bool:
    """Whether kernels can move all of these: some fp32 tensors on a GPU, as dense as they were made."""
    if not 0 < len(parameters) <= MOST_TENSORS or not usable(parameters[0].device):
        return False
    return all(parameter.dtype == torch.float32 and dense(parameter) for parameter in parameters)


def takes_matrices(parameters: list[Tensor]) -> bool:
    """The same for filters, none of which has more outputs than inputs times taps."""
    wide = all(parameter.ndim > 1 and len(parameter) ** 2 <= parameter.numel() for parameter in parameters)
    return wide and takes(parameters)


def dense(tensor: Tensor) -> bool:
    """Whether its elements lie side by side, the first dimension's outermost."""
    layouts = (torch.contiguous_format, torch.channels_last) if tensor.ndim == 4 else (torch.contiguous_format,)
    return any(tensor.is_contiguous(memory_format=layout) for layout in layouts)


def size_of(parameter: Tensor) -> tuple[int, int]:
    """Rows and columns of a parameter as a matrix."""
    return len(parameter), parameter.numel() // len(parameter)


def orthogonal(room: Matrices, coefficients: tuple[float, float, float], iterations: int) -> Tensor:
    """The quintic iteration, four products and sums each: [T, M, L]."""
    x_TML, (_, b, c) = room.updates_TML, coefficients
    for _ in range(iterations):
        gram_TMM = torch.bmm(x_TML, x_TML.mT)
        mixed_TMM = torch.add(room.diagonal_MM, gram_TMM, alpha=b).baddbmm_(gram_TMM, gram_TMM, alpha=c)
        x_TML = torch.bmm(mixed_TMM, x_TML)
    return x_TML


def move_matrices(
    tensors: list[tuple[Tensor, Tensor, Tensor]],
    room: Matrices,
    rate: Tensor,
    momentum: float,
    coefficients: tuple[float, float, float],
    iterations: int,
) -> None:
    """Update filters: parameter, gradient and momentum of each, of one layout in memory."""
    sizes = tuple(size_of(parameter) for parameter, _, _ in tensors)
    text, blocks = source(sizes), sum(rows for rows, _ in sizes)
    pointers = [tensor for three in tensors for tensor in three]
    launch(text, "momentum_rows", blocks, (*pointers, room.updates_TML, room.squares, float(momentum)))
    launch(text, "unit_rows", blocks, (room.updates_TML, room.squares))
    updates_TML = orthogonal(room, coefficients, iterations)
    launch(text, "update_rows", blocks, (*pointers, updates_TML, room.squares, rate))


def move(tensors: list[tuple[Tensor, Tensor, Tensor, Tensor]], decays: list[float], momentum: float) -> None:
    """Update other parameters: parameter, gradient, momentum and learning rate of each."""
    sizes = tuple((four[0].numel(), float(decay)) for four, decay in zip(tensors, decays, strict=True))
    blocks = sum(blocks_of(size) for size, _ in sizes)
    pointers = [tensor for four in tensors for tensor in four]
    launch(sgd_source(sizes), "nesterov", blocks, (*pointers, float(momentum)))


@lru_cache
def source(sizes: tuple[tuple[int, int], ...]) -> str:
    """The kernels' text for matrices of these sizes."""
    pointers, lines, places, before = [], [], [], 0
    for n, (rows, columns) in enumerate(sizes):
        pointers.append(f"float* p{n}, const float* g{n}, float* m{n}")
        place = f"rows = {rows}, columns = {columns}, tensor = {n}, row = blockIdx.x - {before}"
        lines.append(f"if (blockIdx.x >= {before}) p = p{n}, g = g{n}, m = m{n}, {place};")
        places.append(f"if (blockIdx.x >= {before}) {place};")
        before += rows
    most, longest = max(rows for rows, _ in sizes), max(columns for _, columns in sizes)
    text = ROWS.replace("POINTERS", ",\n    ".join(pointers)).replace("TENSORS", "\n  ".join(lines))
    text = text.replace("PLACES", "\n  ".join(places))
    return f"{REALS[torch.bfloat16]}constexpr int M = {most}, L = {longest};\n{text}"


@lru_cache
def sgd_source(sizes: tuple[tuple[int, float], ...]) -> str:
    """The text of the other kernel for tensors of these sizes and weight decays."""
    pointers, lines, before = [], [], 0
    for n, (size, decay) in enumerate(sizes):
        pointers.append(f"float* p{n}, const float* g{n}, float* m{n}, const float* rate{n}")
        picked = f"p = p{n}, g = g{n}, m = m{n}, rate = rate{n}, n = {size}, decay = (float){decay!r}"
        lines.append(f"if (blockIdx.x >= {before}) {picked}, first = blockIdx.x - {before};")
        before += blocks_of(size)
    text = SGD.replace("POINTERS", ",\n    ".join(pointers)).replace("TENSORS", "\n  ".join(lines))
    return text.replace("EACH", str(EACH))
