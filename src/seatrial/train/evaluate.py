"""Loss and accuracy of a classifier over a whole test set, on every rank the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.distributed import Ranks
from seatrial.train.modes import evaluating
from seatrial.train.precision import Precision

#: (model, inputs) → logits [B, classes].
Predict = Callable[[nn.Module, Any], Tensor]


def plain(model: nn.Module, inputs: Any) -> Tensor:
    """Logits of a model that takes its inputs as they are."""
    logits: Tensor = model(inputs)
    return logits


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Any, Tensor]],
    ranks: Ranks,
    precision: Precision,
    predict: Predict = plain,
) -> dict[str, float]:
    """``test_loss`` (mean over all examples of all ranks) and ``accuracy`` (0 to 1).

    Args:
        batches: this rank's share of the set; shares may be of different sizes.
    """
    sums = torch.zeros(3, dtype=torch.double, device=ranks.device)  # loss, correct, examples
    with evaluating(model):
        for inputs, labels_B in batches:
            with precision.autocast():
                logits = predict(model, inputs)
            sums[0] += F.cross_entropy(logits.float(), labels_B, reduction="sum")
            sums[1] += (logits.argmax(1) == labels_B).sum()
            sums[2] += len(labels_B)
    loss, correct, examples = ranks.sum(sums).tolist()
    return {"test_loss": loss / examples, "accuracy": correct / examples}
