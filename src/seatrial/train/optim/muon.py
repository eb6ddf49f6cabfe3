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
from seatrial.train.optim.optimizer import Optimizer, like

#: Coefficients of the quintic iteration, tuned for speed rather than convergence to exactly 1 (same source).
QUINTIC = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3


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
        others: list[dict[str, Any]] = []
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            by_kernels = scale is None and overflow is None and isinstance(group["lr"], Tensor)
            if by_kernels and group["muon"] and not group["weight_decay"] and multi_tensor.takes_matrices(parameters):
                self._move_matrices(group, parameters)
            elif by_kernels and not group["muon"] and multi_tensor.takes(parameters):
                others.append(group)
            elif parameters:
                self._move(group, parameters, scale, overflow)
        for momentum in {group["momentum"] for group in others}:
            self._move_together([group for group in others if group["momentum"] == momentum], momentum)

    def _move_matrices(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """Update filters, by kernels of this library."""
        sizes = tuple(map(multi_tensor.size_of, parameters))
        if sizes not in self._matrices:
            self._matrices[sizes] = multi_tensor.Matrices.from_sizes(sizes, parameters[0].device, QUINTIC[0])
        multi_tensor.muon(
            list(map(self._three, parameters)),
            self._matrices[sizes],
            group["lr"],
            group["momentum"],
            QUINTIC,
            ITERATIONS,
        )

    def _move_together(self, groups: list[dict[str, Any]], momentum: float) -> None:
        """Update all other parameters of one momentum, by one kernel."""
        tensors, decays = [], []
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    tensors.append((*self._three(parameter), group["lr"]))
                    decays.append(group["weight_decay"])
        multi_tensor.nesterov(tensors, decays, momentum)

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
