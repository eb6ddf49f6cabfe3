"""AdamW for stacked trials, each with its own learning rate and weight decay; Adam where the decay is 0.

Shapes: T trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from seatrial.train.kernels import trial_adam
from seatrial.train.optim.optimizer import Optimizer, like
from seatrial.train.trials.network import TrialNetworks
from seatrial.train.trials.settings import Trial

BETAS, EPSILON = (0.9, 0.999), 1e-8


class TrialAdam(Optimizer):
    """AdamW as each trial's lone run has it: tensors of one dimension, biases and normalisation, do not decay.

    On a GPU one kernel of ours updates all; elsewhere torch's fused one, a trial after the other: the same numbers.
    """

    def __init__(self, networks: TrialNetworks, trials: Sequence[Trial], device: torch.device) -> None:
        rates_T = torch.tensor([trial.learning_rate for trial in trials], device=device)
        super().__init__(networks.parameters(), {"lr": rates_T, "betas": BETAS, "eps": EPSILON})
        self._decays = [trial.weight_decay for trial in trials]
        self._decays_T = torch.tensor(self._decays, device=device)
        self._done = torch.zeros((), device=device)

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        self._done.add_(1)
        kinds = self._tensors()
        rates_T = cast(Tensor, self.param_groups[0]["lr"])
        if trial_adam.takes(kinds, rates_T.device):
            trial_adam.update(kinds, self._done, rates_T, self._decays_T, BETAS, EPSILON)
            return
        for trial, (rate, decay) in enumerate(zip(rates_T.unbind(0), self._decays, strict=True)):
            for share, chosen in ((decay, True), (0.0, False)):
                own = [[each[trial] for each in kind if (each.ndim > 2) == chosen] for kind in kinds]
                torch._fused_adamw_(
                    own[0],
                    own[1],
                    own[2],
                    own[3],
                    [],
                    [self._done] * len(own[0]),
                    lr=rate,
                    beta1=BETAS[0],
                    beta2=BETAS[1],
                    weight_decay=share,
                    eps=EPSILON,
                    amsgrad=False,
                    maximize=False,
                    grad_scale=None,
                    found_inf=None,
                )

    def _tensors(self) -> list[list[Tensor]]:
        """Parameters, gradients in the same order of elements, and both moments."""
        parameters = [each for each in self.param_groups[0]["params"] if each.grad is not None]
        slots = [self._slots(parameter) for parameter in parameters]
        gradients = [like(parameter, parameter.grad) for parameter in parameters]
        return [parameters, gradients, [slot["exp_avg"] for slot in slots], [slot["exp_avg_sq"] for slot in slots]]

    def _fresh(self, parameter: Tensor) -> dict[str, Any]:
        return {"step": self._done, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
