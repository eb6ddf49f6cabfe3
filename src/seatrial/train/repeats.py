"""Blocks that a model repeats: compiled one by one, all of them take as long as the first.

torch.compile gives modules of one class, one set of settings and one set of shapes the same code. For a char-GPT of six
such blocks on an H200 compiling took 8 s in place of 20, and the kernels of a step as long (torch 2.11).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from seatrial.train.reading import settings_of

#: Blocks alike that are worth it, and the share of the model's numbers that they must hold.
LEAST, SHARE = 3, 0.7


def repeated(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that come at least LEAST times; [] where they are too little of the model."""
    groups: dict[Any, list[nn.Module]] = {}
    for module in model.modules():
        if next(module.children(), None) is not None and module is not model:
            groups.setdefault(_kind(module), []).append(module)
    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for module in model.modules():  # outer ones first
        if module in inner or len(groups.get(_kind(module), [])) < LEAST or module is model:
            continue
        found.append(module)
        inner.update(module.modules())
    held = sum(parameter.numel() for module in found for parameter in module.parameters())
    return found if held >= SHARE * sum(parameter.numel() for parameter in model.parameters()) else []


def _kind(module: nn.Module) -> Any:
    """Equal for modules that torch.compile gives the same code."""
    parts = [
        (name, type(part), tuple(sorted((key, repr(value)) for key, value in settings_of(part).items())))
        for name, part in module.named_modules()
    ]
    tensors = [(name, tuple(value.shape), value.dtype) for name, value in module.state_dict(keep_vars=True).items()]
    return tuple(parts), tuple(tensors)
