"""The classic network of two small convolutions and two linear layers, a whole step of it in eight launches.

Layer by layer it takes 27: at a batch of 64 each is over in 2 to 10 µs on an H200, most of which is the time to begin
and to end. Here the forward pass goes on to every gradient, for the loss is the last that any of them waits for; the
backward pass only adds up what the blocks found, always in the same order, and scales it.
Shapes: B images [1, H, W]; what follows from them is in cuda/lenet.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import KernelModule, cdiv, differentiable, module
from seatrial.train.kernels.runtime import THREADS
from seatrial.train.precision import Precision

#: Channels of the two convolutions and hidden units that the text is written for, and the most classes.
CHANNELS, HIDDEN, MAX_CLASSES = (32, 64), 128, 32
#: Blocks that share the hidden layer's features, at most: their sums are read by one block for each eight rows.
MAX_SPLITS = 10
#: Blocks that share an image's places in the backward pass of the first layer.
SHARES = 2
#: The most rows of a batch: beyond it cuDNN's and cuBLAS's kernels fill the GPU.
MAX_ROWS = 256


class LenetShape:
    """The pixels of an image, the number of classes, and the sizes that follow from them.

    Attributes:
        area: places after the first pool. places: those after the second; 0: the images are too small.
        features: inputs of the first linear layer. splits: their parts of equal length, by the 32; depth: of a part.
        shared_bytes: of second_layer, hidden and layers_back.
    """

    def __init__(self, height: int, width: int, classes: int) -> None:
        self.height, self.width, self.classes = height, width, classes
        high, wide = (height - 2) // 2, (width - 2) // 2
        self.area, self.places = high * wide, max(0, (high - 2) // 2) * max(0, (wide - 2) // 2)
        self.features = CHANNELS[1] * self.places
        self.splits = max(n for n in range(1, MAX_SPLITS + 1) if self.features // 32 % n == 0)
        self.depth = self.features // self.splits
        first, second = (channels + 8 for channels in CHANNELS)
        forward = 2 * (self.area * first + 32 * (9 * CHANNELS[0] + 8))
        filters = 2 * (-(-4 * self.places // 16) * 16 * second + (self.area + 2 * wide + 3) * first)
        inputs = 2 * (9 * CHANNELS[1] * first + (high + 2) * (wide + 2) * second) + 4 * height * width
        self.shared_bytes = forward, 2 * (64 + 16) * (self.depth + 8), max(filters, inputs)


def modules(shape: LenetShape) -> tuple[KernelModule, KernelModule, KernelModule]:
    """Return the kernels of the forward pass, of loss and linear layers, and of the convolutions' gradients."""
    tiles = cdiv(cdiv(cdiv(shape.area, 16), SHARES), 8)
    sizes = {"H": shape.height, "W": shape.width, "N": shape.classes, "SHARES": SHARES}
    parts = {"SPLITS": shape.splits, "DEPTH": shape.depth, "TILES": tiles}
    forward, head, back = (
        module(f"lenet_{name}.cu", torch.bfloat16, **sizes, **parts) for name in ("forward", "head", "back")
    )
    return forward, head, back


def shape_of(layers: list[nn.Module], height: int, width: int) -> LenetShape | None:
    """Return the sizes of such a network for images of this size; None: the layers are others."""
    kinds = [nn.Conv2d, nn.ReLU, nn.MaxPool2d] * 2 + [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    if len(layers) != len(kinds) or not all(isinstance(*pair) for pair in zip(layers, kinds, strict=True)):
        return None
    first, second, hidden, last = (layers[at] for at in (0, 3, 7, 9))
    assert isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d)
    assert isinstance(hidden, nn.Linear) and isinstance(last, nn.Linear)
    shape = LenetShape(height, width, last.out_features)
    alike = (
        _plain(first, 1, CHANNELS[0])
        and _plain(second, *CHANNELS)
        and all(_pool(layers[at]) for at in (2, 5))
        and (hidden.in_features, hidden.out_features, last.in_features) == (shape.features, HIDDEN, HIDDEN)
        and hidden.bias is not None
        and last.bias is not None
        and last.out_features <= MAX_CLASSES
    )
    return shape if alike and shape.places else None


def takes(shape: LenetShape, layers: list[nn.Module], images: Tensor) -> bool:
    """Return True if the kernels can run here and now for these images."""
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    second = cast(nn.Conv2d, layers[3]).weight
    ready = runtime.usable(images.device) and not images.requires_grad
    known = images.dtype == torch.float32 and all(parameter.dtype == torch.float32 for parameter in parameters)
    trained = all(parameter.requires_grad for parameter in parameters) and len(images) <= MAX_ROWS
    trained = trained or not torch.is_grad_enabled()
    last = second.is_contiguous(memory_format=torch.channels_last)
    room = not images.is_cuda or max(shape.shared_bytes) <= runtime.max_shared_bytes(images.device)
    return ready and known and trained and last and room


def prepare(model: nn.Sequential, precision: Precision, size: tuple[int, int]) -> str:
    """Begin to compile the kernels for images of this height and width; return a line that describes them."""
    if precision.device.type != "cuda" or precision.dtype != torch.bfloat16:
        return f"layers: torch's own, in {precision.name} on {precision.device.type}"
    if reason := runtime.unavailable():
        return f"layers: torch's own, for kernels cannot be compiled here ({reason})"
    shape = shape_of(list(model), *size)
    if shape is None:
        return "layers: torch's own, for they are not those that kernels of this library replace"
    for each in (*modules(shape), module("gather.cu")):
        runtime.build(each.text, precision.device.index or 0)
    return "layers: a step of all of them runs in kernels of this library"


def cross_entropy(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """Return the mean cross-entropy, a ``step.Loss``: by kernels in bf16 on a GPU, else by torch's layers."""
    layers = list(model) if isinstance(model, nn.Sequential) else []
    shape = _known(layers, images_BCHW) if model.training and torch.is_grad_enabled() else None
    if shape is None:
        return F.cross_entropy(model(images_BCHW), labels_B)
    return lenet_step(images_BCHW.contiguous(), labels_B, *_parameters(layers), shape=shape)


def logits(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """Return logits [B, classes] of such a network in fp32: by the kernels of its step where these fit."""
    layers = list(model) if isinstance(model, nn.Sequential) else []
    shape = None if torch.is_grad_enabled() else _known(layers, images_BCHW)
    if shape is None:
        return cast(Tensor, model(images_BCHW))
    parameters, rows = _parameters(layers), len(images_BCHW)
    *_, parts = _hidden_parts(shape, images_BCHW.contiguous(), parameters)
    out = torch.empty(rows, shape.classes, device=images_BCHW.device)
    modules(shape)[1].launch("predict", cdiv(rows, 8), parts, *parameters[5:], out, rows)
    return out


def _known(layers: list[nn.Module], images_BCHW: Tensor) -> LenetShape | None:
    """Return the sizes of a network that autocast runs in bf16 and the kernels fit, or None."""
    kind = images_BCHW.device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.bfloat16:
        return None
    shape = shape_of(layers, *images_BCHW.shape[2:])
    return shape if shape and takes(shape, layers, images_BCHW) else None


def _hidden_parts(shape: LenetShape, images: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run the forward pass up to the hidden layer's sums, one for each part of its features.

    Returns:
        The first pool's results and choices, the second layer's filters in bf16, the second pool's results and
        choices, and the sums [splits, B, units].
    """
    first, first_bias, second, second_bias, hidden = parameters[:5]
    forward, rows, low, device = modules(shape)[0], len(images), torch.bfloat16, images.device
    pooled = torch.empty(rows, shape.area, CHANNELS[0], dtype=low, device=device)
    chosen = torch.empty_like(pooled, dtype=torch.int8)
    threads, rounded = pooled.numel() // 8, torch.empty(second.numel(), dtype=low, device=device)
    blocks = cdiv(threads, THREADS) + cdiv(second.numel(), 4 * THREADS)
    forward.launch("first_layer", blocks, images, first, first_bias, pooled, chosen, second, rounded, threads)
    flat = torch.empty(rows, shape.features, dtype=low, device=device)
    which = torch.empty_like(flat, dtype=torch.int8)
    buffers = (pooled, rounded, second_bias, flat, which)
    forward.launch("second_layer", (rows, 2), *buffers, shared_bytes=shape.shared_bytes[0])
    parts = torch.empty(shape.splits, rows, HIDDEN, device=device)
    grid = (HIDDEN // 16, shape.splits, cdiv(rows, 64))
    forward.launch("hidden", grid, flat, hidden, parts, rows, shared_bytes=shape.shared_bytes[1])
    return pooled, chosen, rounded, flat, which, parts


def _step(images: Tensor, labels: Tensor, *parameters: Tensor, shape: LenetShape) -> Any:
    second, hidden, hidden_bias, last, last_bias = parameters[2], *parameters[4:]
    rows, features, classes, device = len(images), shape.features, shape.classes, images.device
    _, ends, back = modules(shape)
    pooled, chosen, rounded, flat, which, parts = _hidden_parts(shape, images, parameters)
    losses, loss = torch.empty(rows, device=device), torch.empty(1, device=device)
    slopes = torch.empty(rows, HIDDEN, dtype=torch.bfloat16, device=device)
    last_parts = torch.empty(cdiv(rows, 8), HIDDEN + classes * HIDDEN + classes, device=device)
    buffers: tuple[Tensor, ...] = (parts, hidden_bias, last, last_bias, labels, losses, slopes, last_parts)
    ends.launch("head", len(last_parts), *buffers, rows)
    gradient, weights = torch.empty_like(flat), torch.empty(HIDDEN, features, device=device)
    buffers = (slopes, flat, hidden, losses, gradient, weights, loss)
    ends.launch("hidden_back", features // 16, *buffers, rows)
    first_parts = torch.empty(rows * SHARES, parameters[0].numel() + len(parameters[1]), device=device)
    second_parts = torch.empty(rows, second.numel() + len(parameters[3]), device=device)
    buffers = (images, pooled, chosen, gradient, which, rounded, first_parts, second_parts)
    back.launch("layers_back", (rows, 1 + SHARES), *buffers, shared_bytes=shape.shared_bytes[2])
    return loss.view(()), (first_parts, second_parts, last_parts, weights, *parameters), {"kernels": back}


def _step_back(
    needs: Any, grad: Tensor, first_parts: Tensor, second_parts: Tensor, last_parts: Tensor, weights: Tensor,
    *parameters: Tensor, kernels: KernelModule,
) -> Any:  # fmt: skip
    parts = (first_parts, second_parts, last_parts)
    lengths = [weights.numel(), *(part.shape[1] for part in parts)]
    out = torch.empty(sum(lengths), device=weights.device)
    blocks = sum(cdiv(length, 32) for length in lengths[1:]) + cdiv(weights.numel(), 4 * THREADS)
    kernels.launch("totals", blocks, *parts, weights, grad.float(), out, *map(len, parts))
    hidden, first, second, last = torch.split(out, lengths)
    filters, count, classes = parameters[0], parameters[2].numel(), len(parameters[7])
    return (
        *(None, None),
        first[: filters.numel()].as_strided(filters.shape, filters.stride(), first.storage_offset()),
        first[filters.numel() :],
        second[:count].view(CHANNELS[1], 3, 3, CHANNELS[0]).permute(0, 3, 1, 2),
        second[count:],
        hidden.view(parameters[4].shape),
        last[:HIDDEN],
        last[HIDDEN:-classes].view(classes, HIDDEN),
        last[-classes:],
    )


#: images [B, 1, H, W], labels [B], weight and bias of four layers (fp32) → the mean loss, a scalar.
lenet_step = differentiable(_step, _step_back)


def _parameters(layers: list[nn.Module]) -> list[Tensor]:
    """Return weight and bias of the four layers that have them."""
    return [cast(Tensor, parameter) for at in (0, 3, 7, 9) for parameter in (layers[at].weight, layers[at].bias)]


def _plain(layer: nn.Conv2d, inputs: int, outputs: int) -> bool:
    shape = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    expected = (inputs, outputs, (3, 3), (1, 1), (0, 0), (1, 1))
    return shape == expected and layer.groups == 1 and layer.bias is not None


def _pool(layer: nn.Module) -> bool:
    assert isinstance(layer, nn.MaxPool2d)
    return (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode) == (2, 2, 0, 1, False)
