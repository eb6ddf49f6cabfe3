"""A moving average of a model's weights, kept on the device: what is tested and saved in its place."""

from __future__ import annotations

import copy
from types import FunctionType

import torch
from torch import Tensor, nn

from seatrial.train.errors import InputError


class Average:
    """A copy of the model whose weights follow it: after each step ``average += (1 - decay) · (weights - average)``.

    Buffers are the model's. Device operations only, so that a CUDA graph can capture ``update``.

    Raises:
        InputError: a copy of the model would call layers of the original.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        _refuse_shared_layers(model)
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self._followed = model
        self._averaged: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._copied: tuple[list[Tensor], list[Tensor]] = ([], [])
        for own, followed in zip(self.model.parameters(), model.parameters(), strict=True):  # tied ones come once
            kind = self._averaged if own.is_floating_point() else self._copied
            kind[0].append(own)
            kind[1].append(followed)

    @torch.no_grad()
    def update(self) -> None:
        """Follow the model by one step."""
        if self._averaged[0]:
            torch._foreach_lerp_(*self._averaged, 1 - self.decay)
        own, followed = list(self._copied[0]), list(self._copied[1])
        buffers = dict(self._followed.named_buffers())  # looked up each time: a module may put a new one in its place
        for name, buffer in [*self.model.named_buffers()]:
            there = buffers.get(name)
            if there is None:
                continue
            if there.shape != buffer.shape:  # of a table that grows, of angles for longer texts
                path, _, last = name.rpartition(".")
                buffer = self.model.get_submodule(path)._buffers[last] = torch.empty_like(there)
            own.append(buffer)
            followed.append(there)
        if own:
            torch._foreach_copy_(own, followed)


def _refuse_shared_layers(model: nn.Module) -> None:
    """A function kept by a module is not copied, nor are the layers it calls (minGPT's blocks keep one)."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            held = value.__closure__ or () if isinstance(value, FunctionType) else ()
            if any(isinstance(cell.cell_contents, nn.Module) for cell in held):
                raise InputError(
                    f"no average of this model: {path or 'it'}'s {name} is a function that calls its layers, and in a "
                    "copy would still call the original's",
                    fix="make it a method",
                )
