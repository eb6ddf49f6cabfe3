"""Muon for convolution filters, Nesterov SGD for everything else; device operations only, so it can be captured.

The momentum of a matrix is replaced by the nearest orthogonal matrix, approximately.
Source: K. Jordan and others, "Muon: An optimizer for hidden layers", https://kellerjordan.github.io/posts/muon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels import multi_tensor
from seatrial.train.kernels.multi_tensor import ITERATIONS, QUINTIC
from seatrial.train.optim.optimizer import Optimizer, like


class MuonSgd(Optimizer):
    """Groups with ``muon=True`` hold filters [outputs, inputs, h, w] kept at norm √outputs; ``lr`` may be a tensor.

    With a GradScaler a step whose gradients overflowed counts as one with zero gradients.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0, "muon": False})
        self._matrices: dict[tuple[tuple[int, int], ...], multi_tensor.Matrices] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        others: dict[float, list[tuple[Any, ...]]] = {}
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            by_kernels = scale is None and overflow is None and isinstance(group["lr"], Tensor)
            if by_kernels and group["muon"] and not group["weight_decay"] and multi_tensor.takes_matrices(parameters):
                self._move_matrices(group, parameters)
            elif by_kernels and not group["muon"] and multi_tensor.takes(parameters):
                given = [(*self._three(each), group["lr"], group["weight_decay"]) for each in parameters]
                others.setdefault(group["momentum"], []).extend(given)
            elif parameters:
                self._move(group, parameters, scale, overflow)
        for momentum, given in others.items():
            multi_tensor.nesterov(given, momentum)

    def _move_matrices(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update filters, by kernels of this library."""
        sizes = tuple(map(multi_tensor.size_of, parameters))
        if sizes not in self._matrices:
            self._matrices[sizes] = multi_tensor.Matrices(sizes, parameters[0].device)
        multi_tensor.muon(list(map(self._three, parameters)), self._matrices[sizes], group["lr"], group["momentum"])

    def _three(self, parameter: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert parameter.grad is not None
        return parameter, like(parameter, parameter.grad), self._slots(parameter)["momentum_buffer"]

    def _move(
        self, group: dict[str, Any], parameters: list[Tensor], scale: Tensor | None, overflow: Tensor | None
    ) -> None:
        """Update one group, by torch's own kernels."""
        gradients = [
            _unscaled(parameter.grad, scale, overflow) for parameter in parameters if parameter.grad is not None
        ]
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
    """Return each [outputs, …] tensor, as a matrix of outputs rows, with its singular values brought close to 1."""
    result: dict[int, Tensor] = {}
    for shape in {update.shape for update in updates}:
        numbers = [number for number, update in enumerate(updates) if update.shape == shape]
        matrices = torch.stack([updates[number].flatten(1) for number in numbers])
        for number, matrix in zip(numbers, newton_schulz(matrices), strict=True):
            result[number] = matrix.view(shape).to(updates[number].dtype)
    return [result[number] for number in range(len(updates))]


def newton_schulz(matrices_BMN: Tensor) -> Tensor:
    """Run the quintic Newton-Schulz iteration on matrices, in bf16 on a GPU: only the direction is needed."""
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
