"""Each trial's loss and accuracy over a whole test set.

Shapes: T trials, B rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from seatrial.train.precision import Precision
from seatrial.train.trials.losses import Way
from seatrial.train.trials.network import TrialNetworks

#: Images times trials of one batch on a GPU: the first layer's outputs of mnist-deep then take 1.6 GB in bf16.
ROWS_TOGETHER = 32_768


@torch.no_grad()
def evaluate(
    networks: TrialNetworks, batches: Iterable[tuple[Tensor, Tensor]], way: Way, precision: Precision
) -> tuple[list[float], list[float]]:
    """(mean test loss, accuracy from 0 to 1) of every trial."""
    networks.eval()
    sums_2T = torch.zeros(2, networks.trials, dtype=torch.double, device=precision.device)
    examples = 0
    for images_BCHW, labels_B in batches:
        with precision.autocast():
            logits = way.logits(networks, images_BCHW)
        for trial, own in enumerate(logits.float().unbind(0)) if way.name == "looped" else ():
            sums_2T[0, trial] += F.cross_entropy(own, labels_B, reduction="sum")
        if way.name != "looped":
            every = labels_B.expand(networks.trials, -1)
            losses = F.cross_entropy(logits.float().flatten(0, 1), every.flatten(), reduction="none")
            sums_2T[0] += losses.view_as(every).double().sum(1)
        sums_2T[1] += (logits.argmax(2) == labels_B).sum(1)
        examples += len(labels_B)
    networks.train()
    losses_T, correct_T = (sums_2T / examples).tolist()
    return losses_T, correct_T
