"""Which of a model's modules train and which evaluate: kept over whatever is measured between epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards each module is in the mode that it was in: one that a fine-tuning keeps in evaluation stays there."""
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the whole model evaluates."""
    with modes_kept(model):
        model.eval()
        yield
