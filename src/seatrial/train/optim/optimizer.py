"""Optimizers as the loop uses them: parameter groups, state, steps that a CUDA graph can capture.

Their learning rate is a tensor on the device, so that a schedule changes it without the host; they run eagerly and on
the CPU as well.

``torch.optim.Optimizer`` would do, but the first one a process makes imports ``torch.compile``'s machinery (torch 2.11
to 2.13: 800 modules, 2 to 5 s), of which a training that does not compile needs nothing. ``state_dict`` looks the same.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn

from seatrial.train.errors import InputError
from seatrial.train.kernels import multi_tensor

#: Elements of one thread block's share of an update, as torch has it: 225,000 parameters then keep 4 of 132
#: multiprocessors busy, for 46 µs on an H200.
CHUNK = 65_536
#: Blocks wanted in one launch. 36 tensors, with gradient and two moments, fit in its arguments (torch 2.11,
#: aten/src/ATen/native/cuda/MultiTensorApply.cuh), so one launch serves them all.
CHUNKS_PER_LAUNCH = 36
#: A block's threads read four elements each at a time (same file: 512 threads).
SMALLEST_CHUNK = 2048


class Optimizer(ABC):
    """Base of this library's optimizers; ``groups``: parameters, or dictionaries with options besides ``defaults``."""

    #: Tells torch's GradScaler to hand over scale and overflow as tensors instead of waiting for them.
    _step_supports_amp_scaling = True

    def __init__(self, groups: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        listed = list(groups)
        if listed and isinstance(listed[0], Tensor):
            listed = [{"params": listed}]
        self.param_groups: list[dict[str, Any]] = [{**defaults, **group} for group in listed]
        self.state: dict[Tensor, dict[str, Any]] = {}

    @abstractmethod
    def step(self) -> None:
        """Update every parameter that has a gradient."""

    def state_dict(self) -> dict[str, Any]:
        """Return state and groups as torch's optimizers do, with parameters as numbers and live tensors."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters())}
        groups = [{**group, "params": [numbers[each] for each in group["params"]]} for group in self.param_groups]
        return {"state": {numbers[parameter]: slots for parameter, slots in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Put saved state in place, on each parameter's device; options of the groups come with it."""
        parameters = self._parameters()
        for group, options in zip(self.param_groups, saved["param_groups"], strict=True):
            group.update({name: value for name, value in options.items() if name != "params"})
        for number, slots in saved["state"].items():
            own = self._slots(parameters[number])
            for name, value in slots.items():
                own[name].copy_(value)

    def _slots(self, parameter: Tensor) -> dict[str, Any]:
        """Return the state of a parameter; make it if it has none."""
        if parameter not in self.state:
            self.state[parameter] = self._fresh(parameter)
        return self.state[parameter]

    @abstractmethod
    def _fresh(self, parameter: Tensor) -> dict[str, Any]:
        """Make a parameter's state before its first step."""

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), or AdamW with ``decoupled``: in one launch for a small model on a GPU.

    Otherwise in torch's fused kernel, cut so that it fills the GPU, with torch's numbers. One launch: within rounding.
    """

    def __init__(
        self, groups: Iterable[Any], learning_rate: Tensor, weight_decay: float = 0.0, *, decoupled: bool = False
    ) -> None:
        defaults = {"lr": learning_rate, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": weight_decay}
        super().__init__(groups, defaults)
        self._update: Callable[..., None] = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._done = torch.zeros((), device=learning_rate.device)
        self._decoupled = decoupled

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        self._done.add_(1 if overflow is None else 1 - overflow.view(()))
        groups = [(group, kinds) for group in self.param_groups if (kinds := self._tensors(group))[0]]
        if scale is None and overflow is None and multi_tensor.takes_adam(groups, self._done.device):
            multi_tensor.adam(groups, self._done, decoupled=self._decoupled)
            return
        for group, kinds in groups:
            size = chunk_size(tuple(map(Tensor.numel, kinds[0]))) if self._done.is_cuda else CHUNK
            cut = [[piece for tensor in tensors for piece in pieces(tensor, size)] for tensors in kinds]
            rule = {name: group[name] for name in ("lr", "weight_decay", "eps")}
            rule |= dict(zip(("beta1", "beta2"), group["betas"], strict=True))
            scaled = {"grad_scale": scale, "found_inf": overflow}
            self._update(*cut, [], [self._done] * len(cut[0]), **rule, amsgrad=False, maximize=False, **scaled)

    def _tensors(self, group: dict[str, Any]) -> tuple[list[Tensor], ...]:
        """Return a group's parameters that have gradients, their gradients, and both moments."""
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        slots = [self._slots(parameter) for parameter in parameters]
        gradients = [like(parameter, cast(Tensor, parameter.grad)) for parameter in parameters]
        return parameters, gradients, [slot["exp_avg"] for slot in slots], [slot["exp_avg_sq"] for slot in slots]

    def _fresh(self, parameter: Tensor) -> dict[str, Any]:
        return {"step": self._done, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


@lru_cache
def chunk_size(sizes: tuple[int, ...]) -> int:
    """Return the elements of a piece for which as few launches as whole tensors need take all."""
    most = CHUNKS_PER_LAUNCH * -(-len(sizes) // CHUNKS_PER_LAUNCH)
    chunks = range(SMALLEST_CHUNK, CHUNK, SMALLEST_CHUNK)
    return next((chunk for chunk in chunks if sum(-(-size // chunk) for size in sizes) <= most), CHUNK)


def pieces(tensor: Tensor, size: int) -> list[Tensor]:
    """Cut a dense tensor's memory into pieces of at most ``size`` elements, unless torch would cut it like that."""
    if size == CHUNK or tensor.numel() <= size:
        return [tensor]
    return list(torch.split(tensor.as_strided((tensor.numel(),), (1,)), size))


def like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with its elements in the order of the parameter's."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def adam(model: nn.Module, learning_rate: float) -> Optimizer:
    """Return Adam as in Kingma and Ba 2015, with torch's defaults."""
    return Adam(model.parameters(), _rate(model, learning_rate))


def adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> Optimizer:
    """Return AdamW; weights that multiply decay, biases and normalisation (one dimension or none) do not."""
    return Adam(decay_groups(model, weight_decay), _rate(model, learning_rate), decoupled=True)


def sgd(model: nn.Module, learning_rate: float, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return SGD with Nesterov momentum."""
    rate = _rate(model, learning_rate)
    groups = decay_groups(model, weight_decay)
    return torch.optim.SGD(groups, lr=rate, momentum=momentum, nesterov=momentum > 0, fused=True)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: those that decay and those that do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in parameters if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def _rate(model: nn.Module, learning_rate: float) -> Tensor:
    return torch.tensor(learning_rate, device=next(model.parameters()).device)


class Average:
    """A copy of the model whose weights follow it: after each step ``average += (1 - decay) · (weights - average)``.

    Buffers are the model's. Device operations only, so that a CUDA graph can capture ``update``. Raises InputError if a
    copy of the model would call layers of the original.
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
    """Refuse a module that keeps a function: its layers are not copied (minGPT's blocks keep one)."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            held = value.__closure__ or () if isinstance(value, FunctionType) else ()
            if any(isinstance(cell.cell_contents, nn.Module) for cell in held):
                raise InputError(
                    f"no average of this model: {path or 'it'}'s {name} is a function that calls its layers, and in a "
                    "copy would still call the original's",
                    fix="make it a method",
                )
