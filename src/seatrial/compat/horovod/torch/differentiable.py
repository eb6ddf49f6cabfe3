"""Operations whose gradients are operations, too."""

from typing import Any, Callable, Tuple

import torch

Tensor = torch.Tensor


def differentiable(there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """``there(tensor)``, whose gradient goes through ``back``."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        result: Tensor = _ThereAndBack.apply(there, back, tensor)  # type: ignore[no-untyped-call]
        return result
    return there(tensor.detach())


class _ThereAndBack(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor], tensor: Tensor
    ) -> Tensor:
        ctx.back = back
        return there(tensor.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tuple[None, None, Tensor]:
        return None, None, ctx.back(gradient)
