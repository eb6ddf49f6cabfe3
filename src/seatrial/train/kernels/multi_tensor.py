"""Optimizers in few launches for all tensors of a small model: Adam, Nesterov's SGD, and Muon for filters.

torch's fused Adam takes 10 µs for each group on an H200, this 3 for all. An update of the recipe cifar10 was some 200
operations of torch; here it is 15 launches for six convolutions and one for its biases and head: 0.1 ms. Matrices of
different sizes lie in one batch, filled up with zeros, which stay zeros in each product.
Shapes: T tensors, each a matrix of R rows (its outputs) and N columns as they lie in memory; M the largest R, L the
largest N.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import KernelModule, cdiv, module
from seatrial.train.kernels.runtime import THREADS

#: Tensors of one launch: their addresses must fit in the 4 KB of its arguments (CUDA programming guide).
MAX_TENSORS = 64
#: Elements of one thread.
EACH = 4
#: Coefficients of the quintic iteration, tuned for speed rather than convergence to exactly 1 (optim/muon.py: source).
QUINTIC, ITERATIONS = (3.4445, -4.7750, 2.0315), 3
#: Parameter group and its parameters, gradients, first and second moments.
Group = tuple[dict[str, Any], tuple[list[Tensor], ...]]


def _filled_in(kernels: KernelModule, types: dict[str, str], picked: Iterable[tuple[int, str]]) -> KernelModule:
    """Fill in pointers of each tensor (``types``), and the lines that pick the tensor of a block (``picked``)."""
    pointers, lines, places, before = [], [], [], 0
    for n, (blocks, more) in enumerate(picked):
        pointers.append(", ".join(f"{kind} {name}{n}" for name, kind in types.items()))
        own = ", ".join(f"{name} = {name}{n}" for name in types)
        more = more.format(n=n, first=f"blockIdx.x - {before}")
        lines.append(f"if (blockIdx.x >= {before}) {own}, {more};")
        places.append(f"if (blockIdx.x >= {before}) {more};")
        before += blocks
    text = kernels.text.replace("POINTERS", ",\n    ".join(pointers)).replace("TENSORS", "\n  ".join(lines))
    return KernelModule(text.replace("PLACES", "\n  ".join(places)).replace("EACH", str(EACH)))


def takes_adam(groups: list[Group], device: torch.device) -> bool:
    """Return True if one launch can update all of these: few fp32 tensors on a GPU, of one rate, betas and epsilon."""
    if not runtime.usable(device) or not groups:
        return False
    first = groups[0][0]
    alike = all(
        group["lr"] is first["lr"] and (group["betas"], group["eps"]) == (first["betas"], first["eps"])
        for group, _ in groups
    )
    tensors = [tensor for _, kinds in groups for kind in kinds for tensor in kind]
    few = len(tensors) <= 4 * MAX_TENSORS and isinstance(first["lr"], Tensor)
    return alike and few and all(tensor.dtype == torch.float32 for tensor in tensors)


def adam(groups: list[Group], done: Tensor, *, decoupled: bool) -> None:
    """Update parameters and moments; ``done``: steps with this one, a device scalar; ``decoupled``: AdamW's decay."""
    tensors: list[Tensor] = []
    pieces: list[tuple[int, float]] = []
    for group, kinds in groups:
        for quadruple in zip(*kinds, strict=True):
            tensors += quadruple
            pieces.append((quadruple[0].numel(), float(group["weight_decay"])))
    group = groups[0][0]
    beta1, beta2 = map(float, group["betas"])
    numbers = (beta1, beta2, math.log(beta1), math.log(beta2), float(group["eps"]), int(decoupled))
    blocks = sum(blocks_of(size) for size, _ in pieces)
    adam_module(tuple(pieces)).launch("adam", blocks, *tensors, done, group["lr"], *numbers)


@lru_cache
def adam_module(pieces: tuple[tuple[int, float], ...]) -> KernelModule:
    """Return the kernel for tensors of these sizes and weight decays."""
    types = {"p": "float*", "g": "const float*", "m": "float*", "v": "float*"}
    picked = ((blocks_of(size), f"n = {size}, decay = {decay!r}, first = {{first}}") for size, decay in pieces)
    return _filled_in(module("adam.cu"), types, picked)


def blocks_of(size: int) -> int:
    """Return the blocks that a tensor of so many elements takes."""
    return cdiv(size, THREADS * EACH)


class Matrices:
    """Memory for the updates of filters of these sizes during a step, with zeros beyond each matrix."""

    def __init__(self, sizes: tuple[tuple[int, int], ...], device: torch.device) -> None:
        most, longest = map(max, zip(*sizes, strict=True))
        self.updates_TML = torch.zeros(len(sizes), most, longest, dtype=torch.bfloat16, device=device)
        self.squares = torch.zeros(len(sizes), 2, most, device=device)
        self.first_MM = torch.eye(most, dtype=torch.bfloat16, device=device) * QUINTIC[0]


def takes(parameters: Sequence[Tensor]) -> bool:
    """Return True if kernels can move all of these: some fp32 tensors on a GPU, as dense as they were made."""
    if not 0 < len(parameters) <= MAX_TENSORS or not runtime.usable(parameters[0].device):
        return False
    return all(parameter.dtype == torch.float32 and _dense(parameter) for parameter in parameters)


def takes_matrices(parameters: Sequence[Tensor]) -> bool:
    """Return True if kernels can update these filters, none of which has more outputs than inputs times taps."""
    wide = all(parameter.ndim > 1 and len(parameter) ** 2 <= parameter.numel() for parameter in parameters)
    return wide and takes(parameters)


def _dense(tensor: Tensor) -> bool:
    layouts = (torch.contiguous_format, torch.channels_last) if tensor.ndim == 4 else (torch.contiguous_format,)
    return any(tensor.is_contiguous(memory_format=layout) for layout in layouts)


def size_of(parameter: Tensor) -> tuple[int, int]:
    """Return rows and columns of a parameter as a matrix."""
    return len(parameter), parameter.numel() // len(parameter)


def muon(tensors: list[tuple[Tensor, Tensor, Tensor]], room: Matrices, rate: Tensor, momentum: float) -> None:
    """Update filters: parameter, gradient and momentum of each, of one layout in memory."""
    sizes = tuple(size_of(parameter) for parameter, _, _ in tensors)
    kernels, blocks = muon_module(sizes), sum(rows for rows, _ in sizes)
    pointers = [tensor for three in tensors for tensor in three]
    kernels.launch("momentum_rows", blocks, *pointers, room.updates_TML, room.squares, float(momentum))
    kernels.launch("unit_rows", blocks, room.updates_TML, room.squares)
    x_TML, (_, b, c) = room.updates_TML, QUINTIC
    for _ in range(ITERATIONS):
        gram_TMM = torch.bmm(x_TML, x_TML.mT)
        mixed_TMM = torch.add(room.first_MM, gram_TMM, alpha=b).baddbmm_(gram_TMM, gram_TMM, alpha=c)
        x_TML = torch.bmm(mixed_TMM, x_TML)
    kernels.launch("update_rows", blocks, *pointers, x_TML, room.squares, rate)


@lru_cache
def muon_module(sizes: tuple[tuple[int, int], ...]) -> KernelModule:
    """Return the kernels for matrices of these sizes."""
    most, longest = map(max, zip(*sizes, strict=True))
    types = {"p": "float*", "g": "const float*", "m": "float*"}
    place = "rows = {}, columns = {}, tensor = {{n}}, row = {{first}}"
    picked = ((rows, place.format(rows, columns)) for rows, columns in sizes)
    return _filled_in(module("muon.cu", torch.bfloat16, M=most, L=longest), types, picked)


def nesterov(given: list[tuple[Any, ...]], momentum: float) -> None:
    """Update other parameters: parameter, gradient, momentum, learning rate and weight decay of each."""
    sizes = tuple((parameter.numel(), float(decay)) for parameter, *_, decay in given)
    blocks = sum(blocks_of(size) for size, _ in sizes)
    pointers = [tensor for *tensors, _ in given for tensor in tensors]
    nesterov_module(sizes).launch("nesterov", blocks, *pointers, float(momentum))


@lru_cache
def nesterov_module(sizes: tuple[tuple[int, float], ...]) -> KernelModule:
    """Return the kernel for tensors of these sizes and weight decays."""
    types = {"p": "float*", "g": "const float*", "m": "float*", "rate": "const float*"}
    picked = ((blocks_of(size), f"n = {size}, decay = (float){decay!r}, first = {{first}}") for size, decay in sizes)
    return _filled_in(module("nesterov.cu"), types, picked)
