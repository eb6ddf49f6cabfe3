"""Trials' networks as one module: each parameter and buffer of T lone networks, stacked.

Shapes: T trials, B rows, C channels, H and W pixels, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.errors import InputError
from seatrial.train.saving.rng import seed_all
from seatrial.train.trials.settings import Trial

#: Layers that the stack knows how to run.
KNOWN = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear, nn.Dropout)


class TrialNetworks(nn.Module):
    """T networks of the same layers, each with the first weights that its seed gives its lone run.

    Its ``state_dict`` has the names of a lone network's, each tensor with T in front.

    Args:
        build: makes the lone network, with weights drawn from torch's default generator.
    """

    def __init__(self, build: Callable[[], nn.Sequential], trials: Sequence[Trial], device: torch.device) -> None:
        super().__init__()
        networks = []
        for trial in trials:
            seed_all(trial.seed)
            networks.append(build().to(memory_format=torch.channels_last))  # type: ignore[call-overload]
        self.trials, self.layers = len(trials), networks[0]
        if unknown := [type(layer).__name__ for layer in self.layers if not isinstance(layer, KNOWN)]:
            raise InputError(f"networks with {unknown[0]} cannot train as one", fix="run without --fused")
        for others in zip(*(network.modules() for network in networks), strict=True):
            for name in others[0]._parameters:
                if others[0]._parameters[name] is not None:
                    stacked = _stacked([cast(Tensor, other._parameters[name]) for other in others])
                    others[0]._parameters[name] = nn.Parameter(stacked.to(device))
            for name in others[0]._buffers:
                others[0]._buffers[name] = _stacked([cast(Tensor, other._buffers[name]) for other in others]).to(device)
        if device.type == "cpu":  # what dropout and augmentation draw from: each trial's own, as in its lone run
            states = [torch.Generator().manual_seed(trial.seed).get_state() for trial in trials]
            self.register_buffer("generators", torch.stack(states))

    @contextmanager
    def drawing(self, trial: int) -> Iterator[None]:
        """On a CPU torch's default generator is this trial's own meanwhile. On a GPU all trials draw from one."""
        if "generators" not in self._buffers:
            yield
            return
        states_T, before = cast(Tensor, self.generators), torch.get_rng_state()
        torch.set_rng_state(states_T[trial].clone())
        try:
            yield
        finally:
            states_T[trial].copy_(torch.get_rng_state())
            torch.set_rng_state(before)

    def of(self, trial: int) -> dict[str, Tensor]:
        """The state_dict of one trial's lone network, as views."""
        return {name: tensor.detach()[trial] for name, tensor in self.layers.state_dict().items()}

    def each(self) -> list[dict[str, Tensor]]:
        """Parameters and buffers of every trial's lone network; gradients flow to the stacked ones."""
        named = {**dict(self.layers.named_parameters()), **dict(self.layers.named_buffers())}
        taken = {name: tensor.unbind(0) for name, tensor in named.items()}
        return [{name: tensors[trial] for name, tensors in taken.items()} for trial in range(self.trials)]

    def forward(self, x: Tensor) -> Tensor:
        """Logits [T, B, classes] of images [T, B, C, H, W], or of images [B, C, H, W] that all trials share.

        Convolutions are grouped, a group for each trial; linear layers are batched products.
        """
        shared = x.ndim == 4
        if not shared:
            rows = x.shape[1]
            x = x.transpose(0, 1).reshape(rows, -1, *x.shape[3:]).contiguous(memory_format=torch.channels_last)
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                weight, bias = layer.weight.flatten(0, 1), None if layer.bias is None else layer.bias.flatten()
                groups = 1 if shared else self.trials
                x, shared = F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups), False
            elif isinstance(layer, nn.BatchNorm2d):
                x = self._normalised(layer, x)
            elif isinstance(layer, nn.Flatten):
                x = x.reshape(len(x), self.trials, -1).transpose(0, 1)
            elif isinstance(layer, nn.Linear):
                x = torch.baddbmm(layer.bias[:, None], x, layer.weight.transpose(1, 2))
            elif isinstance(layer, nn.MaxPool2d):
                x = F.max_pool2d(x, layer.kernel_size, layer.stride)
            elif isinstance(layer, nn.Dropout):
                x = self._dropped(layer, x)
            else:
                x = layer(x)
        return x

    def _normalised(self, layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
        assert layer.running_mean is not None and layer.running_var is not None
        if self.training:
            cast(Tensor, layer.num_batches_tracked).add_(1)
        statistics = (layer.running_mean.flatten(), layer.running_var.flatten())
        weight, bias = layer.weight.flatten(), layer.bias.flatten()
        return F.batch_norm(x, *statistics, weight, bias, self.training, layer.momentum or 0.0, layer.eps)

    def _dropped(self, layer: nn.Dropout, x: Tensor) -> Tensor:
        if not self.training or "generators" not in self._buffers:
            return F.dropout(x, layer.p, self.training)
        parts = []
        for trial, own in enumerate(x.unbind(0)):
            with self.drawing(trial):
                parts.append(F.dropout(own, layer.p))
        return torch.stack(parts)


def _stacked(tensors: list[Tensor]) -> Tensor:
    """[T, …] with each tensor's own order of elements in memory: channels last stays so within a trial."""
    first = tensors[0]
    if first.ndim == 4:
        return torch.stack([each.detach().permute(0, 2, 3, 1).contiguous() for each in tensors]).permute(0, 1, 4, 2, 3)
    return torch.stack([each.detach() for each in tensors])
