"""Trials of the network of mnist and digits in kernels of this library, all trials in each launch.

The way of docs/decisions/0044: convolution, bias, ReLU and pool in one kernel each, batched products, one loss.
Shapes: T trials, B rows, C channels, H and W pixels, K classes.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from seatrial.train.kernels import classifier_head, trial_conv, trial_grey, trial_head
from seatrial.train.kernels.nvrtc import build, most_shared_bytes, unavailable
from seatrial.train.kernels.trial_parts import SOURCE as SUM_SOURCE
from seatrial.train.precision import Precision
from seatrial.train.trials.losses import Way
from seatrial.train.trials.network import TrialNetworks

#: Layers of the networks that are taken.
ORDER = (
    *(nn.Conv2d, nn.ReLU, nn.MaxPool2d),
    *(nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten),
    *(nn.Linear, nn.ReLU, nn.Linear),
)
DTYPE = torch.bfloat16
#: A thread has the taps of four filters in its registers.
LARGEST_GREY = 5


def unfit(networks: TrialNetworks, shape: tuple[int, ...], precision: Precision) -> str | None:
    """Why the kernels cannot run these networks on batches of [B, C, H, W], or None; begins to compile if they can.

    Raises nothing.
    """
    if precision.device.type != "cuda":
        return "no GPU"
    if precision.dtype != DTYPE:
        return f"they compute in bf16, not {precision.name}"
    if reason := unavailable():
        return f"kernels cannot be compiled here: {reason}"
    if reason := mismatch(networks, shape, most_shared_bytes(precision.device)):
        return reason
    for text in sources(networks, shape):
        build(text, precision.device.index or 0)
    return None


def mismatch(networks: TrialNetworks, shape: tuple[int, ...], shared_bytes: int) -> str | None:
    """What of the layers, or of batches of [B, C, H, W], the kernels do not take; None: they take all."""
    layers = list(networks.layers)
    alike = len(layers) == len(ORDER) and all(isinstance(*pair) for pair in zip(layers, ORDER, strict=True))
    if not alike or shape[1] != 1:
        return "the kernels are for the layers of mnist and digits"
    first, second, last = _convolution(layers[0]), _convolution(layers[3]), cast(nn.Linear, layers[9])
    for layer in (first, second):
        padding = layer.padding[0]
        square = len(set(layer.kernel_size)) == 1 and layer.padding == (padding, padding)
        if not square or layer.stride != (1, 1) or layer.dilation != (1, 1) or layer.bias is None or layer.groups != 1:
            return "the kernels are for square convolutions of stride 1 with a bias"
    for pool in (cast(nn.MaxPool2d, layers[2]), cast(nn.MaxPool2d, layers[5])):
        if (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode) != (2, 2, 0, 1, False):
            return "the kernels are for pools of 2×2"
    filters, features = first.weight.shape[1], last.weight.shape[2]
    if filters % 32 or first.kernel_size[0] > LARGEST_GREY:
        return f"{filters} filters of {first.kernel_size[0]}×{first.kernel_size[0]} in the first layer"
    if trial_grey.shared_bytes(filters, first.kernel_size[0], int(first.padding[0]), *shape[2:]) > shared_bytes:
        return f"images of {shape[2]}×{shape[3]} in the first layer"
    if features > classifier_head.MOST_FEATURES or last.weight.shape[1] > classifier_head.MOST_CLASSES:
        return f"a last layer of {last.weight.shape[1]}×{features}"
    return conv_layer(networks, shape).unfit(shared_bytes)


def sources(networks: TrialNetworks, shape: tuple[int, ...]) -> list[str]:
    """The texts that these networks need."""
    first, last = _convolution(networks.layers[0]), cast(nn.Linear, networks.layers[9])
    numbers = (first.weight.shape[1], first.kernel_size[0], int(first.padding[0]), *shape[2:])
    grey = [trial_grey.source(part, *numbers) for part in (trial_grey.POOL, trial_grey.BACK)]
    head = classifier_head.source(DTYPE, last.weight.shape[2], last.weight.shape[1])
    convolutions = [conv_layer(networks, shape).source(name) for name in trial_conv.KERNELS]
    return [*grey, *convolutions, head, classifier_head.relu_source(DTYPE), SUM_SOURCE]


def conv_layer(networks: TrialNetworks, shape: tuple[int, ...]) -> trial_conv.Layer:
    """The second convolution with the sizes that it has on images of [B, C, H, W]."""
    first, second = _convolution(networks.layers[0]), _convolution(networks.layers[3])
    size, padding = first.kernel_size[0], int(first.padding[0])
    height, width = ((pixels + 2 * padding - size + 1) // 2 for pixels in shape[2:])
    filters, inputs, own, _ = second.weight.shape[1:]
    return trial_conv.Layer(inputs, filters, own, int(second.padding[0]), height, width)


def losses(networks: TrialNetworks, images_TBCHW: Tensor, labels_TB: Tensor) -> Tensor:
    """Mean loss of each trial, [T]."""
    first, second = _convolution(networks.layers[0]), _convolution(networks.layers[3])
    hidden, last = cast(nn.Linear, networks.layers[7]), cast(nn.Linear, networks.layers[9])
    layer = conv_layer(networks, images_TBCHW.shape[1:])
    images = images_TBCHW.contiguous()
    x = trial_grey.GreyPool.apply(images, first.weight, first.bias, int(first.padding[0]))  # type: ignore[no-untyped-call]
    x = trial_conv.ConvolvePool.apply(x, second.weight, second.bias, layer)  # type: ignore[no-untyped-call]
    x = trial_head.TrialLinearRelu.apply(x, hidden.weight, hidden.bias)  # type: ignore[no-untyped-call]
    each: Tensor = trial_head.TrialCrossEntropy.apply(x, last.weight, last.bias, labels_TB.contiguous())  # type: ignore[no-untyped-call]
    return each


def logits(networks: TrialNetworks, images_BCHW: Tensor) -> Tensor:
    """[T, B, K] of images that all trials share."""
    first, second = _convolution(networks.layers[0]), _convolution(networks.layers[3])
    hidden, last = cast(nn.Linear, networks.layers[7]), cast(nn.Linear, networks.layers[9])
    assert first.bias is not None and second.bias is not None
    padding = int(first.padding[0])
    images = images_BCHW.contiguous()
    x, _ = trial_grey.grey_pool(images, first.weight, first.bias, padding, common=True)
    layer = conv_layer(networks, images_BCHW.shape)
    x, _ = trial_conv.convolve_pool(layer, x, second.weight, second.bias)
    x = trial_head.linear_relu(x, hidden.weight, hidden.bias)
    with torch.autocast(x.device.type, enabled=False):
        return torch.baddbmm(last.bias[:, None], x.float(), last.weight.transpose(1, 2))


def _convolution(layer: nn.Module) -> nn.Conv2d:
    assert isinstance(layer, nn.Conv2d)
    return layer


#: Kernels of this library, each over a grid of trials.
KERNELS = Way("kernels", losses, logits)
