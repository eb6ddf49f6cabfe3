"""Check what a training is given: each mistake is refused in one sentence before anything is built of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.nn.parallel import DistributedDataParallel

from seatrial.train.errors import InputError


def check_parts(model: nn.Module, loss: Any, optimizer: Any, source: Any, *, world: int) -> None:
    """Raise InputError for a part of another kind."""
    if not hasattr(source, "spans"):
        raise InputError(f"a Step takes batches, not a {type(source).__name__}", fix="batches(dataset, 128)")
    if not hasattr(optimizer, "param_groups"):
        fix = "one optimizer of all parameters; networks that train against each other (a GAN) need their own loop"
        raise InputError(f"a Step takes one optimizer, not a {type(optimizer).__name__}", fix=fix)
    if isinstance(loss, _Loss):
        raise InputError(
            f"{type(loss).__name__} compares outputs with targets; the loss of a Step gets the model and the batch",
            fix="criterion = ...; loss = lambda model, inputs, targets: criterion(model(inputs), targets)",
        )
    if not callable(loss):
        raise InputError(f"the loss is a {type(loss).__name__}, not a function", fix="def loss(model, inputs, targets)")
    if world > 1 and isinstance(model, DistributedDataParallel):
        problem = "a Step averages the gradients of the ranks itself, and DistributedDataParallel would do it again"
        raise InputError(problem, fix="Step(model.module, ...), and the optimizer as it is")


def check_numbers(
    *, accumulation: int, clip_norm: float | None, average_decay: float | None, scheduled_by: str
) -> None:
    """Raise InputError for a value outside its range."""
    if accumulation < 1:
        raise InputError(f"accumulation={accumulation}: a step is made of 1 micro-batch or more")
    if clip_norm is not None and not clip_norm > 0:
        raise InputError(f"clip_norm={clip_norm} leaves nothing of the gradients", fix="clip_norm=None: not limited")
    if average_decay is not None and not 0 <= average_decay < 1:
        raise InputError(f"average_decay={average_decay} is not from 0 to below 1", fix="average_decay=0.999")
    if scheduled_by not in ("step", "epoch"):
        raise InputError(f"scheduled_by={scheduled_by!r} is neither 'step' nor 'epoch'")


#: (model, *batch) → mean loss over the rows; or a dictionary with it as ``loss``, whose other numbers are logged.
Loss = Callable[..., Any]


def trained_on(given: Any, parts: dict[str, Tensor], share: float) -> Tensor:
    """Return the loss; add a dictionary's other numbers to ``parts`` by ``share``. Raises InputError: no gradient."""
    others: dict[str, Any] = given if isinstance(given, dict) else {}
    if others and "loss" not in others:
        raise InputError(f"the loss gives {', '.join(others)} but no 'loss' to train on")
    loss = others.get("loss", given)
    if not isinstance(loss, Tensor):
        fix = 'return the mean loss, or a dictionary with it as "loss"; leave out .item()'
        raise InputError(f"the loss gives a {type(loss).__name__}, not a tensor", fix=fix)
    if loss.numel() != 1:
        raise InputError(f"the loss is a tensor of shape {list(loss.shape)}, not one number", fix="loss.mean()")
    if not loss.requires_grad:
        fix = "compute it from what the model gives, without .detach(), .item() or torch.no_grad()"
        raise InputError("the loss does not depend on anything that is trained", fix=fix)
    for name, value in others.items():
        number = torch.full((), value, device=loss.device) if isinstance(value, (int, float)) else value
        if name != "loss" and isinstance(number, Tensor) and number.numel() == 1:
            parts[name] = parts.get(name, 0.0) + number.detach().float() * share
    return loss
