"""The ends of the CIFAR-10 network: crops, whitening with GELU; and max-pool, last layer and loss.

Three channels leave Tensor Cores little to multiply, and the whitening layer's result is large: it is written once, and
backwards computed again from the images instead of being read. Of the pool, the last layer and its loss torch makes
some 30 kernels, of which those of the pool take longest; here are 4.
Shapes: B rows, I and C channels, K classes, F features, P places (H times W), R partial sums, N images of a set, S
steps of an epoch; h and w of a crop; channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.kernels import runtime
from seatrial.train.kernels.ops import FORMATS, KernelModule, cdiv, channels_last, differentiable, module, sum_rows
from seatrial.train.kernels.runtime import THREADS

#: Blocks that sum over pixels: four for each multiprocessor of a large GPU (H200: 132).
MAX_BLOCKS = 528
#: Numbers of a filter: they lie in a thread's registers while it computes.
MAX_TAPS, MAX_FILTERS = 32, 64
#: Multiples of channels for which cuDNN 9.19 takes kernels that were made for an H200: 2000 images of 31×31 and 64
#: filters of 3×3 take 200 µs forward and 350 for the filters' gradient; with 24 channels 274 and 313, by older ones.
BY_CHANNELS = 32
#: Rows of one block of the head: one for each warp.
ROWS = 8
#: A row's logits lie in a thread's registers; a warp reads eight channels in each lane; a byte holds a place.
MAX_CLASSES, BY_FEATURES, MAX_FEATURES, MAX_PLACES = 32, 256, 1024, 256


def whitening_module(dtype: torch.dtype, inputs: int, filters: int, size: int) -> KernelModule:
    """Return the kernels of one whitening layer."""
    return module("whitening.cu", dtype, I=inputs, C=filters, K=size, OUT=filled_up(filters))


def _whiten(images: Tensor, weight: Tensor, bias: Tensor) -> Any:
    (rows, inputs, height, width), (filters, _, size, _) = images.shape, weight.shape
    taps, kernels = weight.permute(0, 2, 3, 1).contiguous(), whitening_module(images.dtype, inputs, filters, size)
    out = channels_last((rows, filled_up(filters), height - size + 1, width - size + 1), images, images.dtype)
    groups = out.numel() // 8
    blocks = min(8 * MAX_BLOCKS, cdiv(groups, THREADS))
    kernels.launch("whitened", blocks, images, taps, bias, out, groups, height, width)
    return out, (images, taps, bias), {"kernels": kernels}


def _whiten_back(needs: Any, grad: Tensor, images: Tensor, taps: Tensor, bias: Tensor, *, kernels: KernelModule) -> Any:
    if not needs[2]:
        return None, None, None
    grad = grad.contiguous(memory_format=torch.channels_last)
    pixels, filters = grad.numel() // grad.shape[1], len(bias)
    blocks = min(MAX_BLOCKS, cdiv(pixels * filters // 8, THREADS))
    parts = torch.empty(blocks, filters, device=grad.device)
    kernels.launch("bias_gradient", blocks, images, taps, bias, grad, parts, pixels, *images.shape[2:])
    return None, None, sum_rows(parts)


#: images [B, I, H, W], weight [C, I, K, K], bias [C] → [B, filled_up(C), H - K + 1, W - K + 1] in the images' type;
#: channels beyond C are zeros. Only the bias has a gradient.
_whitened = differentiable(_whiten, _whiten_back)


def whitened_gelu(images: Tensor, layer: nn.Conv2d) -> Tensor:
    """Compute gelu(layer(images)): by these kernels on a GPU, else by torch's layers.

    The kernels fill the channels up with zeros to the next 32, for which cuDNN has faster convolutions.
    """
    if runtime.usable(images.device) and fits(layer, images):
        return _whitened(images, layer.weight, layer.bias)
    return F.gelu(layer(images))


def filled_up(filters: int) -> int:
    """Return the channels of the result for so many filters."""
    return cdiv(filters, BY_CHANNELS) * BY_CHANNELS


def convolved(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Apply the layer to an input that may be filled up with channels of zeros."""
    more = x.shape[1] - layer.in_channels
    weight = F.pad(layer.weight, (0, 0, 0, 0, 0, more)) if more else layer.weight
    result: Tensor = layer._conv_forward(x, weight, layer.bias)
    return result


def fits(layer: nn.Conv2d, images: Tensor) -> bool:
    """Return True if a layer is such a convolution: fixed filters, square, no padding, filters by the eight."""
    plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.padding == (0, 0) and layer.groups == 1
    size, taps = layer.kernel_size[0], layer.kernel_size[0] ** 2 * layer.in_channels
    square = layer.kernel_size == (size, size) and layer.bias is not None and not layer.weight.requires_grad
    known = images.dtype in FORMATS and images.is_contiguous(memory_format=torch.channels_last)
    few = taps <= MAX_TAPS and layer.out_channels % 8 == 0 and layer.out_channels <= MAX_FILTERS
    return plain and square and few and known and not images.requires_grad


def head_module(dtype: torch.dtype, features: int, classes: int) -> KernelModule:
    """Return the kernels of one last layer."""
    return module("pooled_head.cu", dtype, F=features, K=classes, ROWS=ROWS)


def _head(x: Tensor, weight: Tensor, labels: Tensor, *, times: float, smoothing: float) -> Any:
    (rows, features), (classes, _), places = x.shape[:2], weight.shape, x.shape[2] * x.shape[3]
    pooled = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    which = torch.empty(rows, features, dtype=torch.int8, device=x.device)
    losses, slopes = torch.empty(rows, 1, device=x.device), torch.empty(rows, classes, device=x.device)
    buffers = (x, weight, labels, pooled, which, losses, slopes)
    kernels = head_module(x.dtype, features, classes)
    kernels.launch("pooled_cross_entropy", cdiv(rows, ROWS), *buffers, rows, places, times, smoothing)
    return sum_rows(losses).view(()), (pooled, which, weight, slopes), {"size": x.shape[2:], "times": times}


def _head_back(
    needs: Any, grad: Tensor, pooled: Tensor, which: Tensor, weight: Tensor, slopes: Tensor, *, size: Any, times: float
) -> Any:
    (rows, features), classes, blocks = pooled.shape, len(weight), cdiv(len(pooled), ROWS)
    dx = channels_last((rows, features, *size), pooled, pooled.dtype)
    parts = torch.empty(blocks, classes * features, device=pooled.device)
    buffers = (pooled, which, weight, slopes, grad.float(), dx, parts)
    kernels = head_module(pooled.dtype, features, classes)
    kernels.launch("pooled_cross_entropy_back", blocks, *buffers, rows, size[0] * size[1], times)
    return dx, sum_rows(parts).view(classes, features), None


#: x [B, F, H, W] channels last, weight [K, F] (fp32), labels [B] → the mean loss with smoothed labels, a scalar.
#: The logits are those of the weight times ``times``; products in fp32.
pooled_cross_entropy = differentiable(_head, _head_back)


def takes_head(x: Tensor, layer: nn.Linear) -> bool:
    """Return True if the kernels can take these features and this last layer now."""
    classes, features = layer.weight.shape
    few = classes <= MAX_CLASSES and features % BY_FEATURES == 0 and features <= MAX_FEATURES
    ready = runtime.usable(x.device) and torch.is_grad_enabled() and x.dtype in FORMATS and layer.bias is None
    known = x.shape[2] * x.shape[3] <= MAX_PLACES and layer.weight.dtype == torch.float32
    return few and ready and known and x.is_contiguous(memory_format=torch.channels_last)
