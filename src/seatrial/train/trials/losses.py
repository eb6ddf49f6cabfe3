"""Each trial's loss, and one number whose gradient is every trial's own.

Shapes: T trials, B rows, S steps of an epoch, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from seatrial.train.fused import cross_entropy
from seatrial.train.trials.network import TrialNetworks


class Way(NamedTuple):
    """How the layers of all trials run.

    Attributes:
        losses: (networks, images [T, B, C, H, W], labels [T, B]) → mean loss of each trial [T].
        logits: (networks, images [B, C, H, W] that all trials share) → [T, B, K], in evaluation.
    """

    name: str
    losses: Callable[[TrialNetworks, Tensor, Tensor], Tensor]
    logits: Callable[[TrialNetworks, Tensor], Tensor]


class Batch(NamedTuple):
    """What a step's loss is computed from.

    Attributes:
        position: the step within the epoch, [1] on the device. share: of the step's rows in this micro-batch.
    """

    images_TBCHW: Tensor
    position: Tensor
    first: bool
    share: float


def _grouped(networks: TrialNetworks, images_TBCHW: Tensor, labels_TB: Tensor) -> Tensor:
    logits = networks(images_TBCHW).float()
    losses = F.cross_entropy(logits.flatten(0, 1), labels_TB.flatten(), reduction="none")
    return losses.view_as(labels_TB).mean(1)


def _grouped_logits(networks: TrialNetworks, images_BCHW: Tensor) -> Tensor:
    logits: Tensor = networks(images_BCHW)
    return logits


class _Lone(nn.Module):
    """A lone run's loss as a module, so that one trial's parameters can take the place of the stacked ones."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
        return cross_entropy(self.layers, images_BCHW, labels_B)


def _looped(networks: TrialNetworks, images_TBCHW: Tensor, labels_TB: Tensor) -> Tensor:
    losses, lone = [], _Lone(networks.layers)
    for trial, state in enumerate(networks.each()):
        images = images_TBCHW[trial].contiguous(memory_format=torch.channels_last)
        own = {f"layers.{name}": tensor for name, tensor in state.items()}
        with networks.drawing(trial):
            losses.append(functional_call(lone, own, (images, labels_TB[trial])))
    return torch.stack(losses)


def _looped_logits(networks: TrialNetworks, images_BCHW: Tensor) -> Tensor:
    return torch.stack([functional_call(networks.layers, state, images_BCHW) for state in networks.each()])


#: All trials at once in torch's own layers: grouped convolutions, batched products.
GROUPED = Way("grouped", _grouped, _grouped_logits)
#: One trial after the other, each exactly as its lone run computes it: on a CPU the numbers are the same to the bit.
LOOPED = Way("looped", _looped, _looped_logits)


class TrialLosses:
    """A ``step.Loss`` of all trials that keeps what each one's was at every step.

    Trials share no number, so one that diverges leaves the others as they are.
    """

    def __init__(self, way: Way, trials: int, steps: int, device: torch.device) -> None:
        self.way = way
        self.kept_ST = torch.zeros(steps, trials, device=device)

    def __call__(self, model: nn.Module, inputs: Any, labels_TB: Tensor) -> Tensor:
        assert isinstance(model, TrialNetworks) and isinstance(inputs, Batch)
        losses_T = self.way.losses(model, inputs.images_TBCHW, labels_TB).float()
        seen_T = losses_T.detach()
        if inputs.share != 1:
            seen_T = seen_T * inputs.share
        if inputs.first:
            self.kept_ST.index_copy_(0, inputs.position, seen_T[None])
        else:
            self.kept_ST.index_add_(0, inputs.position, seen_T[None])
        mean: Tensor = _Mean.apply(losses_T)  # type: ignore[no-untyped-call]
        return mean


class _Mean(torch.autograd.Function):
    """Losses [T] → the mean of those that are numbers, to be shown; each trial's gradient is that of its own loss."""

    @staticmethod
    def forward(ctx: Any, losses_T: Tensor) -> Tensor:
        ctx.trials = len(losses_T)
        return losses_T.nanmean()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].expand(ctx.trials)
