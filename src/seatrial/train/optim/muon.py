"""Muon for convolution filters, Nesterov SGD for everything else; device operations only, so it can be captured.

The momentum of a matrix is replaced by the nearest orthogonal matrix, approximately.
Source: K. Jordan and others, "Muon: An optimizer for hidden layers", https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from seatrial.train.optim.optimizer import Optimizer

#: Coefficients of the quintic iteration, tuned for speed rather than convergence to exactly 1 (same source).
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3


class MuonSgd(Optimizer):
    """Groups with ``muon=True`` hold filters [outputs, inputs, h, w] kept at norm √outputs; ``lr`` may be a tensor.

    With a GradScaler a step whose gradients overflowed counts as one with zero gradients.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0, "muon": False})

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [_unscaled(parameter.grad, scale, overflow) for parameter in parameters]
            buffers = [self._slots(parameter)["momentum_buffer"] for parameter in parameters]
            if group["weight_decay"]:
                torch._foreach_add_(gradients, parameters, alpha=group["weight_decay"])
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, gradients)
            updates = list(torch._foreach_add(gradients, buffers, alpha=group["momentum"]))
            if group["muon"]:
                updates = orthogonalised(updates)
                for parameter in parameters:
                    parameter.mul_(len(parameter) ** 0.5 / parameter.norm())
            torch._foreach_mul_(updates, group["lr"])
            torch._foreach_sub_(parameters, updates)

    def _fresh(self, parameter: Tensor) -> dict[str, Any]:
        return {"momentum_buffer": torch.zeros_like(parameter)}


def orthogonalised(updates: list[Tensor]) -> list[Tensor]:
    """Each [outputs, …] tensor, as a matrix of outputs rows, with its singular values brought near 1."""
    result: dict[int, Tensor] = {}
    for shape in {update.shape for update in updates}:
        numbers = [number for number, update in enumerate(updates) if update.shape == shape]
        matrices = torch.stack([updates[number].flatten(1) for number in numbers])
        for number, matrix in zip(numbers, newton_schulz(matrices), strict=True):
            result[number] = matrix.view(shape).to(updates[number].dtype)
    return [result[number] for number in range(len(updates))]


def newton_schulz(matrices_BMN: Tensor) -> Tensor:
    """Quintic Newton-Schulz iteration on a batch of matrices, in bf16 on a GPU: only the direction is needed."""
    a, b, c = QUINTIC
    x: Tensor = matrices_BMN.bfloat16() if matrices_BMN.is_cuda else matrices_BMN
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.mT if tall else x


def _unscaled(gradient: Tensor, scale: Tensor | None, overflow: Tensor | None) -> Tensor:
    if scale is not None:
        gradient = gradient / scale
    if overflow is not None:
        gradient = torch.where(overflow > 0, 0.0, gradient)
    return gradient.clone() if scale is None and overflow is None else gradient
