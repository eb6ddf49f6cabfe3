"""Optimizers that a CUDA graph can capture: one fused kernel, learning rate and step count on the device.

The learning rate is a tensor, so that a schedule changes it without the host; they run eagerly and on the CPU as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seatrial.train.optim.optimizer import Adam, Optimizer


def adam(model: nn.Module, learning_rate: float) -> Optimizer:
    """Adam as in Kingma and Ba 2015, torch's defaults."""
    return Adam(model.parameters(), _rate(model, learning_rate))


def adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> Optimizer:
    """AdamW; weights that multiply decay, biases and normalisation (one dimension or none) do not."""
    return Adam(decay_groups(model, weight_decay), _rate(model, learning_rate), decoupled=True)


def sgd(model: nn.Module, learning_rate: float, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum."""
    rate = _rate(model, learning_rate)
    groups = decay_groups(model, weight_decay)
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, fused=True)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two parameter groups: those that decay and those that do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def _rate(model: nn.Module, learning_rate: float) -> Tensor:
    return torch.tensor(learning_rate, device=next(model.parameters()).device)
