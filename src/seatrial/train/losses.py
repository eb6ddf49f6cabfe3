"""What a loss function gives: a number with a gradient, alone or in a dictionary with others to log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from seatrial.train.errors import InputError

#: (model, *batch) → mean loss over the rows; or a dictionary with it as ``loss``, whose other numbers are logged.
Loss = Callable[..., Any]


def trained_on(given: Any, parts: dict[str, Tensor], share: float) -> Tensor:
    """The loss; other numbers of a dictionary are added to ``parts``, weighted with ``share``.

    Raises InputError for what no gradient can be taken of, before autograd says so in its own words.
    """
    others: dict[str, Any] = given if isinstance(given, dict) else {}
    if others and "loss" not in others:
        raise InputError(f"the loss gives {', '.join(others)} but no 'loss' to train on")
    loss = others.get("loss", given)
    if not isinstance(loss, Tensor):
        raise InputError(
            f"the loss gives a {type(loss).__name__}, not a tensor",
            fix='return the mean loss, or a dictionary with it as "loss"; leave out .item()',
        )
    if loss.numel() != 1:
        raise InputError(f"the loss is a tensor of shape {list(loss.shape)}, not one number", fix="loss.mean()")
    if not loss.requires_grad:
        raise InputError(
            "the loss does not depend on anything that is trained",
            fix="compute it from what the model gives, without .detach(), .item() or torch.no_grad()",
        )
    for name, value in others.items():
        number = torch.full((), value, device=loss.device) if isinstance(value, (int, float)) else value
        if name != "loss" and isinstance(number, Tensor) and number.numel() == 1:
            parts[name] = parts.get(name, 0.0) + number.detach().float() * share
    return loss
