"""The loss of a plain classifier, its layers taken together and run by kernels of our own where these fit.

The network stays a torch.nn.Sequential of torch's layers, nested or not: this only runs them. Where no kernel fits
(another layer, another number format, a CPU, torch.compile) a layer runs as torch has it, and so does another network.
Shapes: B images, K classes.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.data import images
from seatrial.train.kernels import classic, classifier_head, filter_gradients, normpool, single_channel_conv, sums
from seatrial.train.kernels.nvrtc import REALS, build, unavailable, usable
from seatrial.train.module_patches import ModuleKernels
from seatrial.train.precision import Precision


def cross_entropy(model: nn.Module, images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
    """Mean cross-entropy of ``model(images)``: a ``step.Loss``."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.float32
    if not isinstance(model, nn.Sequential):
        with kernels_of(model).running() if model.training else nullcontext():
            return F.cross_entropy(model(images_BCHW), labels_B)
    if not (model.training and ours(images_BCHW, dtype)):
        return F.cross_entropy(model(images_BCHW), labels_B)
    return run(flat(model), images_BCHW, labels_B, dtype)


def logits(model: nn.Module, images_BCHW: Tensor) -> Tensor:
    """Return a classifier's logits. A classic one in bf16 runs by the kernels of its step."""
    if isinstance(model, nn.Sequential) and torch.is_autocast_enabled("cuda") and not torch.is_grad_enabled():
        layers, dtype = flat(model), torch.get_autocast_dtype("cuda")
        sizes = classic.sizes_of(layers, *images_BCHW.shape[2:]) if dtype == torch.bfloat16 else None
        if sizes and classic.takes(sizes, layers, images_BCHW):
            return classic.logits(sizes, layers, images_BCHW)
    predicted: Tensor = model(images_BCHW)
    return predicted


def flat(model: nn.Sequential) -> list[nn.Module]:
    """The layers in the order in which they run, those of inner Sequentials too."""
    layers: list[nn.Module] = []
    for layer in model:
        plain = type(layer) is nn.Sequential and not layer._forward_hooks and not layer._forward_pre_hooks
        layers += flat(cast(nn.Sequential, layer)) if plain else [layer]
    return layers


def prepare(model: nn.Module, precision: Precision, size: tuple[int, int] | None = None) -> str:
    """Begin to compile the kernels of this network, all at once; return a line that describes them.

    What is not named here is compiled when it is first used.

    Args:
        size: height and width of the images, where they are all of one.
    """
    if precision.device.type != "cuda" or precision.dtype not in REALS:
        return f"layers: torch's own, in {precision.name} on {precision.device.type}"
    if reason := unavailable():
        return f"layers: torch's own, for kernels cannot be compiled here ({reason})"
    assert precision.device.index is not None
    found = None if isinstance(model, nn.Sequential) else kernels_of(model)
    texts = found.sources(precision.dtype) if found else sources(cast(nn.Sequential, model), precision.dtype, size)
    for text in texts:
        build(text, precision.device.index)
    if found:
        return f"layers: {describe_kernels(found)}"
    return "layers: small convolutions, pools, normalisation and the loss run in kernels of this library"


def prepare_module_kernels(model: nn.Module, precision: Precision) -> tuple[str, ModuleKernels | None]:
    """For a step with a loss of one's own: in words and as an object, what runs parts of any module; or None."""
    if precision.device.type != "cuda" or precision.dtype not in REALS:
        return f"layers: torch's own, in {precision.name} on {precision.device.type}", None
    if reason := unavailable():
        return f"layers: torch's own, for kernels cannot be compiled here ({reason})", None
    found = kernels_of(model)
    if precision.dtype == torch.bfloat16:
        found.copy_weights()
    for text in found.sources(precision.dtype):
        build(text, precision.device.index or 0)
    if precision.name != "fp32" and any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        torch.backends.cudnn.benchmark = True  # it measures its ways when a shape is first met: a second for ResNet-18
    return f"layers: {describe_kernels(found)}", found if found.used else None


_MODULE_KERNELS: WeakKeyDictionary[nn.Module, ModuleKernels] = WeakKeyDictionary()


def kernels_of(model: nn.Module) -> ModuleKernels:
    """Return what kernels can take inside of a module; read once."""
    if model not in _MODULE_KERNELS:
        _MODULE_KERNELS[model] = ModuleKernels(model)
    return _MODULE_KERNELS[model]


def describe_kernels(found: ModuleKernels) -> str:
    """Describe what was taken and what was left."""
    kinds = [
        (len(found.norms), "batch normalisations with what follows them run in kernels of this library"),
        (len(found.rows.layers), "layer normalisations run in kernels of this library"),
        (len(found.products.layers) if found.products else 0, "products use bf16 copies of their weights"),
    ]
    taken = "; ".join(f"{count} {what}" for count, what in kinds if count)
    if not taken and not found.left:
        return "torch's own: no normalisation is inside, which is what kernels of this library take in any module"
    if not found.left:
        return f"{taken}; everything else is torch's own"
    taken = taken or "0 batch normalisations run in kernels of this library"
    (name, why), *others = found.left.items()
    more = f" and {len(others)} more" if others else ""
    return f"{taken}; left to torch: {name}{more} ({why})"


def sources(model: nn.Sequential, dtype: torch.dtype, size: tuple[int, int] | None = None) -> list[str]:
    """The texts that a network of such layers needs."""
    sizes = classic.sizes_of(flat(model), *size) if size and dtype == torch.bfloat16 else None
    if sizes:
        return [*classic.sources(sizes), images.SOURCE]
    texts = [sums.SOURCE, images.SOURCE, classifier_head.relu_source(dtype)]
    channels = 0
    layers = flat(model)
    for layer, following in pairwise([*layers, None]):
        if isinstance(layer, nn.Conv2d):
            channels = layer.out_channels
        if isinstance(layer, nn.MaxPool2d) and normpool.fits(channels):
            planes = isinstance(following, nn.Flatten)
            texts.append(normpool.source(normpool.POOL, dtype, channels, planes=planes))
        if isinstance(layer, nn.Conv2d) and layer.in_channels == 1:
            texts.append(
                single_channel_conv.source(dtype, layer.out_channels, layer.kernel_size[0], int(layer.padding[0]))
            )
        elif isinstance(layer, nn.Conv2d) and filter_gradients.takes(layer, dtype):
            numbers = (layer.in_channels, layer.out_channels, layer.kernel_size[0], int(layer.padding[0]))
            texts.append(filter_gradients.source(*numbers))
        elif isinstance(layer, nn.BatchNorm2d) and normpool.fits(layer.num_features):
            texts.append(normpool.source(normpool.NORM, dtype, layer.num_features))
    if layers and isinstance(last := layers[-1], nn.Linear):
        texts.append(classifier_head.source(dtype, last.in_features, last.out_features))
    return texts


def ours(x: Tensor, dtype: torch.dtype) -> bool:
    """Return True if our kernels can run."""
    return dtype in REALS and torch.is_grad_enabled() and usable(x.device)


def run(layers: list[nn.Module], x: Tensor, labels_B: Tensor, dtype: torch.dtype) -> Tensor:
    """The layers, all together where they are the classic ones, else one kind after the other; and the loss."""
    sizes = classic.sizes_of(layers, *x.shape[2:]) if dtype == torch.bfloat16 and x.ndim == 4 else None
    if sizes and classic.takes(sizes, layers, x):
        return classic.cross_entropy(sizes, layers, x, labels_B)
    while layers:
        layer = layers.pop(0)
        if isinstance(layer, nn.Conv2d) and pools(layer, layers):
            x, norm = convolve(layer, x, dtype), layers[0]
            del layers[: 3 if isinstance(norm, nn.BatchNorm2d) else 2]
            planes = bool(layers) and isinstance(layers[0], nn.Flatten)
            if isinstance(norm, nn.BatchNorm2d):
                x = normpool.NormReluPool.apply(x, norm.weight, norm.bias, norm, planes)  # type: ignore[no-untyped-call]
            else:
                x = normpool.BiasReluPool.apply(x, layer.bias, planes)  # type: ignore[no-untyped-call]
        elif isinstance(layer, nn.Linear) and layers and isinstance(layers[0], nn.ReLU) and layer.bias is not None:
            x = classifier_head.LinearRelu.apply(x.to(dtype), layer.weight, layer.bias)  # type: ignore[no-untyped-call]
            del layers[:1]
        elif isinstance(layer, nn.Linear) and not layers and classifier_head.takes(layer):
            return cast(Tensor, classifier_head.CrossEntropy.apply(x.contiguous(), layer.weight, layer.bias, labels_B))  # type: ignore[no-untyped-call]
        elif isinstance(layer, nn.AdaptiveAvgPool2d) and x.shape[2:] == (1, 1) and layer.output_size == 1:
            continue  # one pixel is its own mean
        else:
            x = layer(x)
    return F.cross_entropy(x, labels_B)


def convolve(layer: nn.Conv2d, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The convolution alone, without its bias, channels last."""
    if single_channel_conv.fits(layer, x):
        return cast(Tensor, single_channel_conv.GreyConvolution.apply(x, layer.weight, int(layer.padding[0]), dtype))  # type: ignore[no-untyped-call]
    if filter_gradients.fits(layer, x):
        return cast(Tensor, filter_gradients.Convolution.apply(x, layer.weight, int(layer.padding[0])))  # type: ignore[no-untyped-call]
    x = layer._conv_forward(x, layer.weight, None)
    return x.contiguous(memory_format=torch.channels_last)


def pools(layer: nn.Conv2d, following: list[nn.Module]) -> bool:
    """Return True if bias, ReLU and a 2×2 max-pool come next, or batch normalisation and these."""
    if not normpool.fits(layer.out_channels):
        return False
    if following and isinstance(following[0], nn.BatchNorm2d):
        norm = following[0]
        known = norm.affine and norm.track_running_stats and norm.momentum is not None
        return known and layer.bias is None and _relu_pool(following[1:3])
    return layer.bias is not None and _relu_pool(following[:2])


def _relu_pool(layers: list[nn.Module]) -> bool:
    if len(layers) < 2 or not isinstance(layers[0], nn.ReLU) or not isinstance(layers[1], nn.MaxPool2d):
        return False
    pool = layers[1]
    return (pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode) == (2, 2, 0, 1, False)
