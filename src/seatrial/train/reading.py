"""A module's own code, read by torch.fx with every module that it calls as a black box."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Tracer

_PLAIN = (bool, int, float, str, type(None))


class Unreadable(Exception):
    """Why a module's code cannot be read, in a few words."""


class _Shallow(Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def read(module: nn.Module) -> Graph:
    """What the module does in training; it stays as it is, and so do random numbers. Raises Unreadable."""
    modes, draws = {part: part.training for part in module.modules()}, torch.get_rng_state()
    module.train()
    try:
        return _Shallow().trace(module)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"{type(module).__name__}'s code cannot be read: {first[:80]}") from error
    finally:
        for part, mode in modes.items():
            part.training = mode
        if not torch.equal(draws, torch.get_rng_state()):
            torch.set_rng_state(draws)


def hooked(module: nn.Module) -> bool:
    """Whether a call of the module does more than its ``forward``."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def settings_of(module: nn.Module) -> dict[str, Any]:
    """What a module's code may branch on."""
    return {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
