"""The classic network of two small convolutions and two linear layers, a whole step of it in eight launches.

Layer by layer it takes 27: at a batch of 64 each is over in 2 to 10 µs on an H200, most of which is the time to begin
and to end. Here the forward pass goes on to every gradient, for the loss is the last that any of them waits for; the
backward pass only adds up what the blocks found, always in the same order, and scales it.
Shapes: B images [1, H, W]; what follows from them is in classic_text.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.data import images
from seatrial.train.kernels import classic_back_text, classic_text
from seatrial.train.kernels.nvrtc import EIGHT, REALS, THREADS, build, launch, most_shared_bytes, unavailable, usable
from seatrial.train.kernels.tensor_cores import TENSOR_CORES
from seatrial.train.precision import Precision

#: Channels of the two convolutions and hidden units that the text is written for, and the most classes.
CHANNELS, HIDDEN, MOST_CLASSES = (32, 64), 128, 32
#: Blocks that share the hidden layer's features, at most: their sums are read by one block for each eight rows.
MOST_SPLITS = 10
#: Blocks that share an image's places in the backward pass of the first layer.
SHARES = 2
#: The most rows of a batch: beyond it cuDNN's and cuBLAS's kernels fill the GPU.
MOST_ROWS = 256


@dataclass(frozen=True)
class Sizes:
    """Of images and of classes."""

    height: int
    width: int
    classes: int

    @property
    def pooled(self) -> tuple[int, int]:
        """After the first pool."""
        return (self.height - 2) // 2, (self.width - 2) // 2

    @property
    def area(self) -> int:
        """Places after the first pool."""
        return self.pooled[0] * self.pooled[1]

    @property
    def places(self) -> int:
        """After the second pool; 0 or less: the images are too small."""
        high, wide = ((pixels - 2) // 2 for pixels in self.pooled)
        return high * wide if min(high, wide) > 0 else 0

    @property
    def features(self) -> int:
        """Of the first linear layer."""
        return CHANNELS[1] * self.places

    @property
    def splits(self) -> int:
        """Parts of equal length, by the 32, of the features."""
        return max(n for n in range(1, MOST_SPLITS + 1) if self.features // 32 % n == 0)

    @property
    def shared_bytes(self) -> tuple[int, int, int]:
        """Shared memory of second_layer, hidden and layers_back."""
        first, second = (channels + 8 for channels in CHANNELS)
        depth = self.features // self.splits + 8
        high, wide = self.pooled
        forward = 2 * (self.area * first + 32 * (9 * CHANNELS[0] + 8))
        filters = 2 * (-(-4 * self.places // 16) * 16 * second + (self.area + 2 * wide + 3) * first)
        inputs = 2 * (9 * CHANNELS[1] * first + (high + 2) * (wide + 2) * second) + 4 * self.height * self.width
        return forward, 2 * (64 + 16) * depth, max(filters, inputs)


@lru_cache
def sources(sizes: Sizes) -> tuple[str, str, str]:
    """The texts of the forward pass, of the loss with the linear layers, and of the convolutions' backward pass."""
    tiles = ceil(ceil(sizes.area / 16) / SHARES)
    numbers = f"constexpr int H = {sizes.height}, W = {sizes.width}, N = {sizes.classes}, SHARES = {SHARES};\n"
    numbers += f"constexpr int SPLITS = {sizes.splits}, DEPTH = {sizes.features // sizes.splits};\n"
    numbers += f"constexpr int TILES = {-(-tiles // 8)};\n"
    begin = f"{REALS[torch.bfloat16]}{EIGHT}{numbers}{classic_text.SIZES}{TENSOR_CORES}{classic_text.VECTORS}"
    return begin + classic_text.FORWARD, begin + classic_text.HEAD, begin + classic_back_text.BACK


def sizes_of(layers: list[nn.Module], height: int, width: int) -> Sizes | None:
    """The sizes of such a network for images of this size; None: the layers are others."""
    kinds = [nn.Conv2d, nn.ReLU, nn.MaxPool2d] * 2 + [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]
    if len(layers) != len(kinds) or not all(isinstance(*pair) for pair in zip(layers, kinds, strict=True)):
        return None
    first, second, hidden, last = (layers[at] for at in (0, 3, 7, 9))
    assert isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d)
    assert isinstance(hidden, nn.Linear) and isinstance(last, nn.Linear)
    sizes = Sizes(height, width, last.out_features)
    alike = (
        _plain(first, 1, CHANNELS[0])
        and _plain(second, *CHANNELS)
        and all(_pool(layers[at]) for at in (2, 5))
        and (hidden.in_features, hidden.out_features, last.in_features) == (sizes.features, HIDDEN, HIDDEN)
        and hidden.bias is not None
        and last.bias is not None
        and last.out_features <= MOST_CLASSES
    )
    return sizes if alike and sizes.places else None


def takes(sizes: Sizes, layers: list[nn.Module], images: Tensor) -> bool:
    """Whether the kernels can run here and now for these images."""
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    second = cast(nn.Conv2d, layers[3]).weight
    ready = usable(images.device) and not images.requires_grad
    known = images.dtype == torch.float32 and all(parameter.dtype == torch.float32 for parameter in parameters)
    trained = all(parameter.requires_grad for parameter in parameters) and len(images) <= MOST_ROWS
    trained = trained or not torch.is_grad_enabled()
    last = second.is_contiguous(memory_format=torch.channels_last)
    room = not images.is_cuda or max(sizes.shared_bytes) <= most_shared_bytes(images.device)
    return ready and known and trained and last and room


def prepare(model: nn.Sequential, precision: Precision, size: tuple[int, int]) -> str:
    """Begin to compile the kernels for images of this height and width; return a line that describes them."""
    if precision.device.type != "cuda" or precision.dtype != torch.bfloat16:
        return f"layers: torch's own, in {precision.name} on {precision.device.type}"
    if reason := unavailable():
        return f"layers: torch's own, for kernels cannot be compiled here ({reason})"
    sizes = sizes_of(list(model), *size)
    if sizes is None:
        return "layers: torch's own, for they are not those that kernels of this library replace"
    for text in (*sources(sizes), images.SOURCE):
        build(text, precision.device.index or 0)
    return "layers: a step of all of them runs in kernels of this library"


def cross_entropy(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """Mean cross-entropy of ``model(images)``, a ``step.Loss``: by kernels in bf16 on a GPU, else by torch's layers."""
    layers = list(model) if isinstance(model, nn.Sequential) else []
    sizes = _known(layers, images_BCHW) if model.training and torch.is_grad_enabled() else None
    if sizes is None:
        return F.cross_entropy(model(images_BCHW), labels_B)
    return cast(Tensor, ClassicStep.apply(sizes, images_BCHW.contiguous(), labels_B, *_parameters(layers)))  # type: ignore[no-untyped-call]


def logits(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """[B, classes] of such a network: by the kernels of its step where these fit."""
    layers = list(model) if isinstance(model, nn.Sequential) else []
    sizes = None if torch.is_grad_enabled() else _known(layers, images_BCHW)
    return cast(Tensor, model(images_BCHW)) if sizes is None else predicted(sizes, layers, images_BCHW)


def _known(layers: list[nn.Module], images_BCHW: Tensor) -> Sizes | None:
    """The sizes of a network that autocast runs in bf16 and the kernels fit, or None."""
    kind = images_BCHW.device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.bfloat16:
        return None
    sizes = sizes_of(layers, *images_BCHW.shape[2:])
    return sizes if sizes and takes(sizes, layers, images_BCHW) else None


def predicted(sizes: Sizes, layers: list[nn.Module], images: Tensor) -> Tensor:
    """What such a network predicts, [B, classes] in fp32."""
    parameters = _parameters(layers)
    *_, parts = hidden_parts(sizes, images.contiguous(), parameters)
    out = torch.empty(len(images), sizes.classes, device=images.device)
    launch(sources(sizes)[1], "predict", -(-len(images) // 8), (parts, *parameters[5:], out, len(images)))
    return out


def hidden_parts(sizes: Sizes, images: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The forward pass up to the hidden layer's sums, one for each part of its features.

    Returns:
        The first pool's results and choices, the second layer's filters in bf16, the second pool's results and
        choices, and the sums [splits, B, units].
    """
    first, first_bias, second, second_bias, hidden = parameters[:5]
    text, _, _ = sources(sizes)
    rows, area, features, low = len(images), sizes.area, sizes.features, torch.bfloat16

    def empty(*shape: int, dtype: torch.dtype = low) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=images.device)

    pooled, chosen = empty(rows, area, CHANNELS[0]), empty(rows, area, CHANNELS[0], dtype=torch.int8)
    threads, rounded = rows * area * (CHANNELS[0] // 8), empty(second.numel())
    blocks = -(-threads // THREADS) + -(-second.numel() // (4 * THREADS))
    arguments: tuple[Any, ...] = (images, first, first_bias, pooled, chosen, second, rounded, threads)
    launch(text, "first_layer", blocks, arguments)
    flat, which = empty(rows, features), empty(rows, features, dtype=torch.int8)
    arguments = (pooled, rounded, second_bias, flat, which)
    launch(text, "second_layer", (rows, 2), arguments, shared_bytes=sizes.shared_bytes[0])
    parts = empty(sizes.splits, rows, HIDDEN, dtype=torch.float32)
    grid = (HIDDEN // 16, sizes.splits, -(-rows // 64))
    launch(text, "hidden", grid, (flat, hidden, parts, rows), shared_bytes=sizes.shared_bytes[1])
    return pooled, chosen, rounded, flat, which, parts


class ClassicStep(torch.autograd.Function):
    """images [B, 1, H, W], labels [B], weight and bias of four layers (fp32) → the mean loss, a scalar."""

    @staticmethod
    def forward(ctx: Any, sizes: Sizes, images: Tensor, labels: Tensor, *parameters: Tensor) -> Tensor:
        hidden_bias, last, last_bias = parameters[5:]
        rows, features, classes, low = len(images), sizes.features, sizes.classes, torch.bfloat16
        hidden, second = parameters[4], parameters[2]
        _, ends, back = sources(sizes)

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=images.device)

        pooled, chosen, rounded, flat, which, parts = hidden_parts(sizes, images, parameters)
        losses, loss, slopes = empty(rows), empty(1), empty(rows, HIDDEN, dtype=low)
        last_parts = empty(-(-rows // 8), HIDDEN + classes * HIDDEN + classes)
        arguments: tuple[Any, ...] = (parts, hidden_bias, last, last_bias, labels, losses, slopes, last_parts, rows)
        launch(ends, "head", len(last_parts), arguments)
        gradient, weights = empty(rows, features, dtype=low), empty(HIDDEN, features)
        arguments = (slopes, flat, hidden, losses, gradient, weights, loss, rows)
        launch(ends, "hidden_back", features // 16, arguments)
        first_parts = empty(rows * SHARES, parameters[0].numel() + len(parameters[1]))
        second_parts = empty(rows, second.numel() + len(parameters[3]))
        arguments = (images, pooled, chosen, gradient, which, rounded, first_parts, second_parts)
        launch(back, "layers_back", (rows, 1 + SHARES), arguments, shared_bytes=sizes.shared_bytes[2])
        ctx.save_for_backward(first_parts, second_parts, last_parts, weights, *parameters)
        ctx.text = back
        return loss.view(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        first_parts, second_parts, last_parts, weights, *parameters = ctx.saved_tensors
        parts = (first_parts, second_parts, last_parts)
        lengths = [weights.numel(), *(part.shape[1] for part in parts)]
        out = torch.empty(sum(lengths), device=weights.device)
        blocks = sum(-(-length // 32) for length in lengths[1:]) + -(-weights.numel() // (4 * THREADS))
        arguments = (*parts, weights, grads[0].float(), out, *map(len, parts))
        launch(ctx.text, "totals", blocks, arguments)
        hidden, first, second, last = torch.split(out, lengths)
        count, classes = parameters[2].numel(), len(parameters[7])
        filters = second[:count].view(CHANNELS[1], 3, 3, CHANNELS[0]).permute(0, 3, 1, 2)
        return (
            *(None, None, None),
            first[: parameters[0].numel()].as_strided(
                parameters[0].shape, parameters[0].stride(), first.storage_offset()
            ),
            first[parameters[0].numel() :],
            filters,
            second[count:],
            hidden.view(parameters[4].shape),
            last[:HIDDEN],
            last[HIDDEN:-classes].view(classes, HIDDEN),
            last[-classes:],
        )


def _parameters(layers: list[nn.Module]) -> list[Tensor]:
    """Weight and bias of the four layers that have them."""
    return [cast(Tensor, parameter) for at in (0, 3, 7, 9) for parameter in (layers[at].weight, layers[at].bias)]


def _plain(layer: nn.Conv2d, inputs: int, outputs: int) -> bool:
    sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    expected = (inputs, outputs, (3, 3), (1, 1), (0, 0), (1, 1))
    return sizes == expected and layer.groups == 1 and layer.bias is not None


def _pool(layer: nn.Module) -> bool:
    assert isinstance(layer, nn.MaxPool2d)
    return (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode) == (2, 2, 0, 1, False)
