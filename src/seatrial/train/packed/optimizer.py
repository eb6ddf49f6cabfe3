"""AdamW over flat weights: one launch a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.train.optim.optimizer import Optimizer
from seatrial.train.packed.weights import FlatWeights


class FlatAdamW(Optimizer):
    """AdamW as ``optim.optimizer.adamw`` has it: matrices and embeddings decay, what has one dimension does not."""

    def __init__(self, weights: FlatWeights, learning_rate: float) -> None:
        rate, rule = torch.tensor(learning_rate, device=weights.flat.device), weights.rule
        parameters = [weights.words, *weights.parameters]
        groups = [
            {"params": [each for each in parameters if each.ndim > 1], "weight_decay": rule.decay},
            {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
        ]
        super().__init__(groups, {"lr": rate, "betas": rule.betas, "eps": rule.epsilon})
        self._weights = weights

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter, and the copy for the products."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._slots(parameter)
        self._weights.done.add_(1)
        self._weights.update(self.param_groups[0]["lr"])

    def _fresh(self, parameter: Tensor) -> dict[str, Any]:
        first, second = self._weights.state_of(parameter)  # type: ignore[arg-type]
        return {"step": self._weights.done, "exp_avg": first, "exp_avg_sq": second}
