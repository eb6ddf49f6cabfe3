"""AdamW over flat weights: one launch a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels import flat_adam
from seatrial.train.optim.optimizer import Optimizer
from seatrial.train.packed.weights import FlatWeights


class FlatAdamW(Optimizer):
    """AdamW as ``optim.optimizer.adamw`` has it: matrices and embeddings decay, what has one dimension does not."""

    def __init__(self, weights: FlatWeights, learning_rate: float, weight_decay: float) -> None:
        rate = torch.tensor(learning_rate, device=weights.flat.device)
        decays = [(parameter.ndim > 1, parameter) for parameter in weights.parameters]
        groups = [
            {"params": [parameter for matrix, parameter in decays if matrix], "weight_decay": weight_decay},
            {"params": [parameter for matrix, parameter in decays if not matrix], "weight_decay": 0.0},
        ]
        super().__init__(groups, {"lr": rate, "betas": (0.9, 0.999), "eps": 1e-8})
        self._weights, self._decay = weights, weight_decay
        self._done = torch.zeros((), device=rate.device)
        self._moments = weights.moments()

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter, and the copy for the products."""
        for parameter in self._weights.parameters:
            self._slots(parameter)
        self._done.add_(1)
        weights, group = self._weights, self.param_groups[0]
        flat_adam.update(
            (weights.flat, *self._moments, weights.gradients, weights.values),
            weights.decayed,
            weights.copied,
            weights.norm,
            self._done,
            group["lr"],
            group["betas"],
            group["eps"],
            self._decay,
        )

    def _fresh(self, parameter: Tensor) -> dict[str, Any]:
        first, second = (self._weights.like(flat, parameter) for flat in self._moments)  # type: ignore[arg-type]
        return {"step": self._done, "exp_avg": first, "exp_avg_sq": second}
