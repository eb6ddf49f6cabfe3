"""Convolutions and linear layers of any module in bf16, their weights cast once a step for all of them.

Autocast casts every weight where it is used and every gradient where it arrives: two small kernels a layer. Here one
launch copies all weights into bf16; a gradient is made in fp32 where that is possible (products of matrices), else cast.
The numbers of the forward pass are autocast's. Gradients of filters wait for nothing that comes after them, so they may run on
a second stream, beside what the first goes on with.
Shapes: N rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Beside:
    """A second stream for work that nothing waits for until ``join``."""

    def __init__(self) -> None:
        self.on = False
        self._stream: torch.cuda.Stream | None = None
        self._used: list[Tensor] = []

    def run(self, work: Callable[[], Tensor | None], *inputs: Tensor) -> Tensor | None:
        """What ``work`` makes of the inputs, on the second stream where that is on."""
        if not self.on:
            return work()
        self._stream = self._stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = work()
        self._used += inputs
        return result

    def join(self) -> None:
        """The first stream waits for the second."""
        if self._used and self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            self._used = []


class Convolve(torch.autograd.Function):
    """A convolution with ``copy`` in place of ``weight``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, copy: Tensor, layer: nn.Conv2d, beside: Beside) -> Tensor:
        ctx.save_for_backward(x, copy)
        ctx.layer, ctx.beside = layer, beside
        return torch.conv2d(x, copy, None, layer.stride, layer.padding, layer.dilation, layer.groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, copy = ctx.saved_tensors
        (grad,), layer = grads, ctx.layer

        def part(*mask: bool) -> Any:
            numbers = (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups)
            return torch.ops.aten.convolution_backward(grad, x, copy, None, *numbers, mask)

        of_weight = ctx.beside.run(lambda: part(False, True, False)[1].float(), grad, x)
        of_x = part(True, False, False)[0] if ctx.needs_input_grad[0] else None
        return of_x, of_weight, None, None, None


class Multiply(torch.autograd.Function):
    """A linear layer with copies in place of its weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Tensor, bias_copy: Tensor | None, beside: Beside
    ) -> Tensor:
        ctx.save_for_backward(x, copy)
        ctx.beside, ctx.biased = beside, bias is not None
        return F.linear(x, copy, bias_copy)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, copy = ctx.saved_tensors
        grad_NO, x_NI = grads[0].flatten(0, -2), x.flatten(0, -2)
        of_weight = ctx.beside.run(lambda: product(grad_NO.t(), x_NI), grad_NO, x_NI)
        of_bias = grad_NO.sum(0, dtype=torch.float32) if ctx.biased else None
        of_x = (grad_NO @ copy).view(x.shape) if ctx.needs_input_grad[0] else None
        return of_x, of_weight, of_bias, None, None, None


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in fp32."""
    if left.is_cuda and FP32_OUT:
        return torch.mm(left, right, out_dtype=torch.float32)
    return (left @ right).float()


#: torch.mm writes fp32 from bf16 (torch 2.8 and later).
FP32_OUT = "out_dtype" in str(torch.ops.aten.mm.overloads()) or hasattr(torch.ops.aten.mm, "dtype")


class Products:
    """The layers of a model that are run so."""

    def __init__(self, model: nn.Module) -> None:
        self.beside = Beside()
        self.layers: list[nn.Module] = []
        self._weights: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._forwards: list[Callable[..., Any]] = []
        for layer in model.modules():
            if type(layer) in (nn.Conv2d, nn.Linear) and plain(layer):
                self.layers.append(layer)
                self._forwards.append(self._conv(layer) if isinstance(layer, nn.Conv2d) else self._linear(layer))

    def _copy(self, weight: Tensor | None) -> Tensor | None:
        if weight is None:
            return None
        copy = torch.empty_like(weight, dtype=torch.bfloat16, requires_grad=False)
        self._weights.append(weight.detach())
        self._copies.append(copy)
        return copy

    def _conv(self, layer: nn.Conv2d) -> Callable[..., Any]:
        copy = self._copy(layer.weight)
        return lambda x: Convolve.apply(x.to(torch.bfloat16), layer.weight, copy, layer, self.beside)

    def _linear(self, layer: nn.Linear) -> Callable[..., Any]:
        copy, bias = self._copy(layer.weight), self._copy(layer.bias)
        return lambda x: Multiply.apply(x.to(torch.bfloat16), layer.weight, layer.bias, copy, bias, self.beside)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within, the layers use copies of the weights as they are now."""
        torch._foreach_copy_(self._copies, self._weights)
        for layer, forward in zip(self.layers, self._forwards, strict=True):
            layer.__dict__["forward"] = forward
        try:
            yield
        finally:
            for layer in self.layers:
                layer.__dict__.pop("forward", None)


def plain(layer: nn.Module) -> bool:
    """Whether nothing but the layer's own code happens when it is called."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    if hooks or "forward" in layer.__dict__ or "weight" not in layer._parameters:
        return False
    if isinstance(layer, nn.Conv2d) and (layer.bias is not None or layer.padding_mode != "zeros"):
        return False
    return layer.weight.dtype == torch.float32 and layer.weight.requires_grad
