"""Compile the blocks that a model repeats one by one: all of them take as long as the first.

torch.compile gives modules of one class, one set of settings and one set of shapes the same code. For a char-GPT of six
such blocks on an H200 compiling took 8 s in place of 20, and the kernels of a step as long (torch 2.11).
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from seatrial.train.traced_code import running_by, settings_of

#: Blocks alike that are worth it, and the share of the model's numbers that they must hold.
LEAST, SHARE = 3, 0.7


class CompiledBlocks:
    """The repeated blocks of a model, compiled while a step runs; a test of the model runs them as they are written."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = repeated(model)
        self._calls = [torch.compile(module._call_impl, dynamic=False, options=options()) for module in self.modules]

    def running(self) -> AbstractContextManager[None]:
        """Run calls of the blocks within as compiled ones."""
        return running_by(zip(self.modules, self._calls, strict=True), "_compiled_call_impl")


def options() -> dict[str, Any] | None:
    """Return the options of torch.compile.

    Mixed orders of reduction (torch 2.11) put the gradients of a normalisation's factors into the kernel that follows
    its rows: on an H200 a step of a char-GPT spent 1.25 ms there with them and 0.97 without.
    """
    from torch._inductor import list_options

    name = "triton.mix_order_reduction"
    return {name: False} if name in list_options() else None


def repeated(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that come at least LEAST times; [] if they are too little of the model."""
    kinds = {module: _kind(module) for module in model.modules() if module is not model and [*module.children()]}
    counts, found, inner = Counter(kinds.values()), list[nn.Module](), set[nn.Module]()
    for module, kind in kinds.items():  # outer ones first
        if module not in inner and counts[kind] >= LEAST:
            found.append(module)
            inner.update(module.modules())
    held = sum(parameter.numel() for module in found for parameter in module.parameters())
    return found if held >= SHARE * sum(parameter.numel() for parameter in model.parameters()) else []


def _kind(module: nn.Module) -> Any:
    """Return a key that is equal for modules that torch.compile gives the same code."""
    parts = [
        (name, type(part), tuple(sorted((key, repr(value)) for key, value in settings_of(part).items())))
        for name, part in module.named_modules()
    ]
    tensors = [(name, tuple(value.shape), value.dtype) for name, value in module.state_dict(keep_vars=True).items()]
    return tuple(parts), tuple(tensors)
