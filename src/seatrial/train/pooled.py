# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"
"""Convolutions, ReLU and 2×2 max-pools of small networks, each in as few kernels as it takes, for compiled steps.

Small convolutions keep few of a GPU's multiprocessors busy in cuDNN 9.1. On an H200, a batch of 64 images of 28×28: the
first layer takes 21 µs forward and 70 backward of a step of 220, for its one channel has little to multiply with Tensor
Cores; here each program computes the four values that a pool looks at, keeps the largest and remembers which it was.
The gradient of the second layer's filters takes 17 µs in 5 programs; here 5 µs in 72.

Needs Triton, which torch brings on Linux; used where torch.compile is, as compiling these takes a second too.
Shapes: B images, I channels of the input, C filters, H and W pixels, K the filter's size; channels last.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

#: Places of one program and its warps, kernel by kernel: the fastest of those tried on an H200 (docs/benchmarks.md).
#: Backward each program sums up its places alone, then these sums are added: the order never changes.
CONVOLVE, CONVOLVE_BACK, POOL, POOL_BACK = (16, 4), (64, 4), (8, 4), (32, 2)
#: The same for the gradient of filters, and among how many programs the places are split for each of a filter's taps.
FILTERS, SPLITS = (128, 4), 8
#: Filters times channels of which one program holds a tap's gradients in registers; cuDNN takes larger ones.
LARGEST_FILTERS = 128 * 64
#: Which of a pool's four values was largest: 0 to 3 in reading order, or this: none was above 0.
NONE = tl.constexpr(4)


@triton.jit
def _convolve_pool(x, w, bias, out, which, places, H, W, PH, PW, C: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < places
    image, row, column = place // (PH * PW), (place // PW) % PH, place % PW
    corner = image * H * W + row * 2 * W + column * 2
    c = tl.arange(0, C)
    a00 = tl.zeros((BLOCK, C), tl.float32)
    a01 = tl.zeros((BLOCK, C), tl.float32)
    a10 = tl.zeros((BLOCK, C), tl.float32)
    a11 = tl.zeros((BLOCK, C), tl.float32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            filters = tl.load(w + c * K * K + i * K + j)[None, :]
            at = x + corner + i * W + j
            a00 += tl.load(at, inside, 0.0)[:, None] * filters
            a01 += tl.load(at + 1, inside, 0.0)[:, None] * filters
            a10 += tl.load(at + W, inside, 0.0)[:, None] * filters
            a11 += tl.load(at + W + 1, inside, 0.0)[:, None] * filters
    best, index = _largest(a00, a01, a10, a11, tl.load(bias + c)[None, :])
    at = place[:, None] * C + c[None, :]
    tl.store(out + at, best, inside[:, None])
    tl.store(which + at, index, inside[:, None])


@triton.jit
def _convolve_pool_back(
    grad,
    which,
    x,
    sums,
    places,
    H,
    W,
    PH,
    PW,
    C: tl.constexpr,
    K: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each of the pool's four values: its pixels [taps, places] times its gradients [places, C]. Tap K² is the bias."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < places
    image, row, column = place // (PH * PW), (place // PW) % PH, place % PW
    c, tap = tl.arange(0, C), tl.arange(0, TAPS)
    at = place[:, None] * C + c[None, :]
    index = tl.load(which + at, inside[:, None], NONE)
    g = tl.load(grad + at, inside[:, None], 0.0)
    corner = x + (image * H * W + row * 2 * W + column * 2)[:, None] + (tap // K * W + tap % K)[None, :]
    pixel = inside[:, None] & (tap < K * K)[None, :]
    total = tl.zeros((TAPS, C), tl.float32)
    for k in tl.static_range(4):
        pixels = tl.load(corner + (k // 2) * W + k % 2, pixel, 0.0)
        pixels = tl.where((tap == K * K)[None, :], 1.0, pixels).to(g.dtype)
        chosen = tl.where(index == k, g, 0.0).to(g.dtype)
        total = tl.dot(tl.trans(pixels), chosen, total, input_precision="ieee")
    at = (tl.program_id(0) * (K * K + 1) + tap[:, None]) * C + c[None, :]
    tl.store(sums + at, total, (tap <= K * K)[:, None])


@triton.jit
def _pool(x, bias, out, which, places, H, W, PH, PW, C: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (place < places)[:, None]
    image, row, column = place // (PH * PW), (place // PW) % PH, place % PW
    c = tl.arange(0, C)[None, :]
    at = x + ((image * H + row * 2) * W + column * 2)[:, None] * C + c
    a00 = tl.load(at, inside, 0.0).to(tl.float32)
    a01 = tl.load(at + C, inside, 0.0).to(tl.float32)
    a10 = tl.load(at + W * C, inside, 0.0).to(tl.float32)
    a11 = tl.load(at + W * C + C, inside, 0.0).to(tl.float32)
    best, index = _largest(a00, a01, a10, a11, tl.load(bias + c) if BIAS else 0.0)
    tl.store(out + place[:, None] * C + c, best, inside)
    tl.store(which + place[:, None] * C + c, index, inside)


@triton.jit
def _pool_back(grad, which, dx, sums, pixels, H, W, PH, PW, C: tl.constexpr, BLOCK: tl.constexpr):
    c = tl.arange(0, C)[None, :]
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, row, column = pixel // (H * W), (pixel // W) % H, pixel % W
    pooled = (pixel < pixels) & (row < PH * 2) & (column < PW * 2)
    at = ((image * PH + row // 2) * PW + column // 2)[:, None] * C + c
    index = tl.load(which + at, pooled[:, None], NONE)
    g = tl.load(grad + at, pooled[:, None], 0.0).to(tl.float32)
    g = tl.where(index == ((row % 2) * 2 + column % 2)[:, None], g, 0.0)
    tl.store(dx + pixel[:, None] * C + c, g, (pixel < pixels)[:, None])
    tl.store(sums + tl.program_id(0) * C + tl.arange(0, C), tl.sum(g, 0))


@triton.jit
def _filter_gradient(
    x,
    grad,
    sums,
    pixels,
    H,
    W,
    GH,
    GW,
    IN: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    STEPS: tl.constexpr,
):
    tap, split = tl.program_id(0), tl.program_id(1)
    i, c = tl.arange(0, IN), tl.arange(0, C)
    total = tl.zeros((C, IN), tl.float32)
    for step in range(STEPS):
        pixel = (step * SPLITS + split) * BLOCK + tl.arange(0, BLOCK)
        image, row, column = pixel // (GH * GW), (pixel // GW) % GH, pixel % GW
        row, column = row + tap // K - PADDING, column + tap % K - PADDING
        there = (pixel < pixels) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        g = tl.load(grad + pixel[:, None] * C + c[None, :], (pixel < pixels)[:, None], 0.0)
        at = ((image * H + row) * W + column)[:, None] * IN + i[None, :]
        total = tl.dot(tl.trans(g), tl.load(x + at, there[:, None], 0.0), total)
    at = ((split * C + c[:, None]) * K * K + tap) * IN + i[None, :]
    tl.store(sums + at, total)


@triton.jit
def _largest(a00, a01, a10, a11, bias):
    """ReLU of the largest plus bias, and which it was; the first among equals, as cuDNN and torch have it."""
    best = tl.maximum(tl.maximum(a00, a01), tl.maximum(a10, a11))
    index = tl.where(a00 == best, 0, tl.where(a01 == best, 1, tl.where(a10 == best, 2, 3)))
    best += bias
    return tl.maximum(best, 0.0), tl.where(best > 0, index, NONE).to(tl.int8)


class ConvolvePool(torch.autograd.Function):
    """images [B, 1, H, W], weight [C, 1, K, K], bias [C] → [B, C, PH, PW] in ``dtype``. No gradient of the images."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        rows, _, height, width = images.shape
        filters, _, size, _ = weight.shape
        pooled = (rows, (height - size + 1) // 2, (width - size + 1) // 2)
        out = torch.empty(*pooled, filters, dtype=dtype, device=images.device)
        which = torch.empty(*pooled, filters, dtype=torch.int8, device=images.device)
        places = which.numel() // filters
        block, warps = CONVOLVE
        arguments = (places, height, width, pooled[1], pooled[2], filters, size, block)
        _convolve_pool[(triton.cdiv(places, block),)](images, weight, bias, out, which, *arguments, num_warps=warps)
        ctx.save_for_backward(images, which)
        ctx.size = size
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        images, which = ctx.saved_tensors
        grad = grads[0].permute(0, 2, 3, 1).contiguous()
        _, height, width = images.shape[1:]
        filters, taps = which.shape[3], ctx.size**2
        places = which.numel() // filters
        block, warps = CONVOLVE_BACK
        programs = triton.cdiv(places, block)
        sums = torch.empty(programs, taps + 1, filters, device=images.device)
        padded = max(16, triton.next_power_of_2(taps + 1))
        arguments = (places, height, width, which.shape[1], which.shape[2], filters, ctx.size, padded, block)
        _convolve_pool_back[(programs,)](grad, which, images, sums, *arguments, num_warps=warps)
        total = sums.sum(0)
        return None, total[:taps].t().reshape(filters, 1, ctx.size, ctx.size), total[taps], None


class Convolve(torch.autograd.Function):
    """x [B, I, H, W], weight [C, I, K, K] → [B, C, H', W'] in ``dtype``: cuDNN's, but for the filters' gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int, dtype: torch.dtype) -> Tensor:
        x, weight = x.to(dtype).contiguous(memory_format=torch.channels_last), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return nn.functional.conv2d(x, weight, padding=padding).contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = grads[0].contiguous(memory_format=torch.channels_last)
        ours = dy.dtype != torch.float32 and weight.shape[0] * weight.shape[1] <= LARGEST_FILTERS
        one, pad, wanted = [1, 1], [ctx.padding] * 2, [True, not ours, False]
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, x, weight, None, one, pad, one, False, [0, 0], 1, wanted)
        return dx, filter_gradient(x, dy, weight.shape[2], ctx.padding) if ours else dw, None, None


class BiasReluPool(torch.autograd.Function):
    """x [B, C, H, W], bias [C] or None → [B, C, H/2, W/2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        rows, filters, height, width = x.shape
        pooled = (rows, height // 2, width // 2)
        out = torch.empty(*pooled, filters, dtype=x.dtype, device=x.device)
        which = torch.empty(*pooled, filters, dtype=torch.int8, device=x.device)
        places = which.numel() // filters
        block, warps = POOL
        arguments = (places, height, width, pooled[1], pooled[2], filters, bias is not None, block)
        _pool[(triton.cdiv(places, block),)](x, x if bias is None else bias, out, which, *arguments, num_warps=warps)
        ctx.save_for_backward(which)
        ctx.height, ctx.width, ctx.biased = height, width, bias is not None
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (which,) = ctx.saved_tensors
        grad = grads[0].permute(0, 2, 3, 1).contiguous()
        rows, pooled_height, pooled_width, filters = which.shape
        dx = torch.empty(rows, ctx.height, ctx.width, filters, dtype=grad.dtype, device=grad.device)
        pixels = rows * ctx.height * ctx.width
        block, warps = POOL_BACK
        programs = triton.cdiv(pixels, block)
        sums = torch.empty(programs, filters, device=grad.device)
        arguments = (pixels, ctx.height, ctx.width, pooled_height, pooled_width, filters, block)
        _pool_back[(programs,)](grad, which, dx, sums, *arguments, num_warps=warps)
        return dx.permute(0, 3, 1, 2), sums.sum(0) if ctx.biased else None


def filter_gradient(x: Tensor, dy: Tensor, size: int, padding: int = 0) -> Tensor:
    """Gradient of filters [C, I, size, size] (fp32) from x [B, I, H, W] and dy [B, C, H', W'], both channels last."""
    _, inputs, height, width = x.shape
    rows, filters, out_height, out_width = dy.shape
    pixels, taps = rows * out_height * out_width, size * size
    block, warps = FILTERS
    sums = torch.empty(SPLITS, filters, taps, inputs, device=x.device)
    steps = triton.cdiv(pixels, block * SPLITS)
    arguments = (pixels, height, width, out_height, out_width, inputs, filters, size, padding, block, SPLITS, steps)
    _filter_gradient[(taps, SPLITS)](x, dy, sums, *arguments, num_warps=warps)
    return sums.sum(0).view(filters, size, size, inputs).permute(0, 3, 1, 2)


def convolve_patches(x: Tensor, weight: Tensor, padding: int, dtype: torch.dtype) -> Tensor:
    """The convolution of x [B, 1, H, W] as one product: patches [B·H'·W', K²], with zeros up to a multiple of 8."""
    filters, _, size, _ = weight.shape
    rows, _, height, width = x.shape
    spare = -(size**2) % 8
    patches = nn.functional.unfold(x, size, padding=padding).transpose(1, 2).reshape(-1, size**2)
    wide = nn.functional.pad(patches, (0, spare)).to(dtype)
    flat = nn.functional.pad(weight.reshape(filters, -1), (0, spare)).to(dtype)
    out_height, out_width = height + 2 * padding - size + 1, width + 2 * padding - size + 1
    return (wide @ flat.t()).view(rows, out_height, out_width, filters).permute(0, 3, 1, 2)


def forward(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """``model(x)`` of an nn.Sequential with its convolutions, and ReLU before MaxPool2d(2), in this file's kernels."""
    layers = list(model.children())
    while layers:
        layer = layers.pop(0)
        pooled = isinstance(layer, nn.Conv2d) and pools(layers)
        if isinstance(layer, nn.Conv2d) and plain(layer):
            padding, grey = int(layer.padding[0]), layer.in_channels == 1
            if grey and pooled and layer.bias is not None and padding == 0:
                x = ConvolvePool.apply(x, layer.weight, layer.bias, dtype)  # type: ignore[no-untyped-call]
                del layers[:2]
                continue
            if grey:
                x = convolve_patches(x, layer.weight, padding, dtype)
            else:
                x = Convolve.apply(x, layer.weight, padding, dtype)  # type: ignore[no-untyped-call]
            if pooled:
                x = BiasReluPool.apply(x, layer.bias)  # type: ignore[no-untyped-call]
                del layers[:2]
            elif layer.bias is not None:
                x = x + layer.bias[:, None, None]
        elif pools([layer, *layers]) and x.shape[1] & (x.shape[1] - 1) == 0:
            x = BiasReluPool.apply(x, None)  # type: ignore[no-untyped-call]
            del layers[:1]
        else:
            x = layer(x)
    return x


def plain(layer: nn.Conv2d) -> bool:
    """Whether a convolution is what the kernels compute: stride 1, the same padding all around, powers of two."""
    channels = (layer.in_channels, layer.out_channels)
    powers = all(count & (count - 1) == 0 for count in channels) and channels[1] >= 16 and channels[0] not in (2, 4, 8)
    same = isinstance(layer.padding, tuple) and layer.padding[0] == layer.padding[1]
    square = layer.kernel_size[0] == layer.kernel_size[1]
    return powers and same and square and layer.stride == (1, 1) and layer.groups == 1 and layer.dilation == (1, 1)


def pools(layers: list[nn.Module]) -> bool:
    """Whether the next two layers are ReLU and a 2×2 max-pool."""
    if len(layers) < 2 or not isinstance(layers[0], nn.ReLU):
        return False
    pool = layers[1]
    return isinstance(pool, nn.MaxPool2d) and pool.kernel_size == 2 and pool.stride == 2 and not pool.padding
