"""CUDA source files with their constants, and kernels joined to autograd."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.train.kernels import runtime

FOLDER = Path(__file__).with_name("cuda")
#: Number formats that kernels know, and those that lose no gradient without scaling.
FORMATS = {torch.float32: 32, torch.bfloat16: 16, torch.float16: 15}
REALS = (torch.float32, torch.bfloat16)
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.M)


class KernelModule(NamedTuple):
    """The kernels of one .cu file for one set of constants: the key of the compile cache is the whole text."""

    text: str

    def launch(
        self, name: str, blocks: int | tuple[int, ...], *arguments: Tensor | float | None, shared_bytes: int = 0
    ) -> None:
        """Queue one kernel: tensors go as pointers, ints as int, floats as double."""
        runtime.launch(self.text, name, blocks, arguments, shared_bytes=shared_bytes)


@lru_cache(1024)
def module(file: str, dtype: torch.dtype | None = None, **constants: int | float) -> KernelModule:
    """Return a file of cuda/ behind its constants; ``Real`` is ``dtype`` there."""
    real = f"#define REAL {FORMATS[dtype]}\n" if dtype else ""
    return KernelModule(real + "".join(map(_constant, constants, constants.values())) + _expanded(file))


def _constant(name: str, value: float) -> str:
    kind = {bool: "bool", int: "int"}.get(type(value), "float")
    return f"constexpr {kind} {name} = ({kind}){str(value).lower()};\n"


@cache
def _expanded(file: str) -> str:
    """Return the text of a file with its headers in it."""
    return _INCLUDE.sub(lambda header: _expanded(header[1]), (FOLDER / file).read_text(encoding="utf-8"))


class _Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: tuple[Callable[..., Any], ...], options: dict[str, Any], *tensors: Any) -> Any:
        result, saved, ctx.state = pair[0](*tensors, **options)
        ctx.backward_of = pair[1]
        ctx.save_for_backward(*saved)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        return None, None, *ctx.backward_of(ctx.needs_input_grad[2:], grads[0], *ctx.saved_tensors, **ctx.state)


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Tensor]:
    """Join a pair of functions to autograd.

    Args:
        forward: gets tensors and options, returns (result, saved tensors, state).
        backward: gets whether each tensor needs a gradient, the result's gradient, the saved tensors and the state;
            returns the tensors' gradients.
    """
    return lambda *tensors, **options: _Op.apply((forward, backward), options, *tensors)  # type: ignore[no-untyped-call]


def refuse_second_derivatives() -> None:
    """Raise RuntimeError where the gradients of a backward pass would be derived again, for they cannot be."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError("kernels of this library have no second derivatives: Step(..., kernels=False)")


def cdiv(a: int, b: int) -> int:
    """Divide a / b, rounded up."""
    return -(-a // b)


def sum_rows(matrix_RN: Tensor) -> Tensor:
    """Sum [R, N] fp32 → [N], always in the same order."""
    rows, columns = matrix_RN.shape
    sums_N = matrix_RN.new_empty(columns)
    module("sums.cu").launch("sum_rows", cdiv(columns, 32), matrix_RN, sums_N, rows, columns)
    return sums_N


def channels_last(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    """Allocate [B, C, H, W], channels last, on the device of ``like``; one channel with the strides torch gives it."""
    layout = torch.channels_last if shape[1] > 1 else torch.contiguous_format
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=layout)
