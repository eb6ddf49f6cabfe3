"""Run work on a second stream of the GPU, concurrently with the first one.

A step whose kernels wait for one another leaves multiprocessors idle: at the end of each product of matrices, and where
one moves bytes the arithmetic. In a graph, kernels of the first stream go before those of the second (engine.Graphed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seatrial.train.distributed import GradientReducer
from seatrial.train.kernels.ops import refuse_second_derivatives
from seatrial.train.traced_code import hooked, running_by


class SideStream:
    """A second stream; on a CPU, what would go there is done at once."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._begun: list[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = []

    @property
    def on(self) -> bool:
        """Return True if there is a second stream."""
        return self._stream is not None

    @contextmanager
    def running(self, *used: Tensor) -> Iterator[None]:
        """Run the work queued within, which needs ``used``, after all queued before and next to what follows."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            self._begun.append((self.event(), used))

    def event(self) -> torch.cuda.Event:
        """Return an event that marks the end of the second stream's work so far."""
        assert self._stream is not None
        event: torch.cuda.Event = self._stream.record_event()
        return event

    def wait(self, but: int = 0) -> None:
        """Make the first stream wait for all that was begun but the last so many."""
        ended = len(self._begun) - but
        if ended > 0:
            self._begun[ended - 1][0].wait()
            del self._begun[:ended]

    def forget(self) -> None:
        """Forget the work of a failed step: its memory is released when it has run, and a capture can end."""
        if self._begun and self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._begun = []


class SecondStream:
    """A second stream, on within ``backward``."""

    def __init__(self) -> None:
        #: Weights whose gradient autograd would copy (and so read at once): it lies otherwise in memory.
        self.refused: set[Tensor] = set()
        self._alone: set[Tensor] = set()
        self._side_stream: SideStream | None = None
        self._made: dict[Tensor, int] = {}

    @contextmanager
    def backward(self, loss: Tensor, weights: Iterable[Tensor]) -> Iterator[None]:
        """Run one backward pass from ``loss`` within; at its end the first stream waits for the second.

        Raises RuntimeError if a gradient was read before it was there; that weight is in ``refused`` from now on.
        """
        counts = gradient_counts(loss)
        self._alone = {
            weight
            for weight in weights
            if counts.get(weight) == 1 and weight.grad is None and weight not in self.refused and not is_watched(weight)
        }
        try:
            yield
        finally:
            self._alone = set()
            self.wait()
            made, self._made = self._made, {}
        early = {weight for weight, place in made.items() if weight.grad is None or weight.grad.data_ptr() != place}
        self.refused |= early
        if early:
            raise EarlyError(f"gradients of {len(early)} weights were copied before they were made")

    def wait(self) -> None:
        """Make the first stream wait for the gradients that were begun."""
        if self._side_stream is not None:
            self._side_stream.wait()

    def takes(self, weight: Tensor) -> bool:
        """Return True if this weight's gradient may be made on the second stream."""
        return weight in self._alone

    def run(self, weight: Tensor, work: Callable[[], Tensor], *inputs: Tensor) -> Tensor:
        """Return the result of ``work``; where the weight is taken, it runs on the second stream."""
        if not self.takes(weight):
            return work()
        self._side_stream = self._side_stream or SideStream(weight.device)
        with self._side_stream.running(*inputs):
            made = work()
        self._made[weight] = made.data_ptr()
        return made


class EarlyError(RuntimeError):
    """A gradient was read before it was there."""


def gradient_counts(loss: Tensor) -> dict[Tensor, int]:
    """Count the gradients of each leaf of a loss, which are added to one."""
    counts: dict[Tensor, int] = {}
    seen: set[Any] = {loss.grad_fn}
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions if node is not None else ():
            leaf = getattr(following, "variable", None)
            if leaf is not None:
                counts[leaf] = counts.get(leaf, 0) + 1
            elif following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return counts


def is_watched(weight: Tensor) -> bool:
    """Return True if a hook gets the gradient, other than the reducer's, which waits for it."""
    hooks = getattr(weight, "_post_accumulate_grad_hooks", None) or {}
    others = [hook for hook in hooks.values() if getattr(hook, "__func__", None) is not GradientReducer.filled]
    return bool(weight._backward_hooks or others)


COPY = torch.bfloat16


class Convolve(torch.autograd.Function):
    """A convolution with ``copy`` in place of ``weight``: x [B, C, H, W]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Tensor, stream: SecondStream, layer: nn.Conv2d
    ) -> Tensor:
        ctx.save_for_backward(x, copy)
        ctx.layer, ctx.biases = layer, None if bias is None else list(bias.shape)
        ctx.weight, ctx.stream = weight, stream
        bias = None if bias is None else bias.to(COPY)
        return torch.conv2d(x, copy, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        x, copy = ctx.saved_tensors
        (grad,), layer, biases = grads, ctx.layer, ctx.biases
        numbers = (layer.stride, sides(layer), layer.dilation, False, (0, 0), layer.groups)

        def parts(of_x: bool, of_weight: bool) -> list[Tensor | None]:
            mask = (of_x and ctx.needs_input_grad[0], of_weight, of_x and biases is not None)
            made = torch.ops.aten.convolution_backward(grad, x, copy, biases, *numbers, mask)
            return [made[0], made[1] if made[1] is None else made[1].float(), made[2]]

        if ctx.stream.takes(ctx.weight):
            of_weight = ctx.stream.run(ctx.weight, lambda: parts(False, True)[1], grad, x)
            of_x, _, of_bias = parts(True, False) if ctx.needs_input_grad[0] or biases else (None, None, None)
        else:
            of_x, of_weight, of_bias = parts(True, True)
        return of_x, of_weight, None if of_bias is None else of_bias.float(), None, None, None


class Multiply(torch.autograd.Function):
    """A linear layer with ``copy`` in place of ``weight``: x [..., I]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Tensor, stream: SecondStream) -> Tensor:
        ctx.save_for_backward(x, copy)
        ctx.weight, ctx.stream, ctx.biased = weight, stream, bias is not None
        return F.linear(x, copy, None if bias is None else bias.to(COPY))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives()
        x, copy = ctx.saved_tensors
        grad_NO, x_NI = grads[0].flatten(0, -2), x.flatten(0, -2)
        of_weight = ctx.stream.run(ctx.weight, lambda: product(grad_NO.t(), x_NI), grad_NO, x_NI)
        of_x = (grad_NO @ copy).view(x.shape) if ctx.needs_input_grad[0] else None
        of_bias = grad_NO.sum(0, dtype=torch.float32) if ctx.biased else None
        return of_x, of_weight, of_bias, None, None


def product(left: Tensor, right: Tensor) -> Tensor:
    """Multiply left @ right in fp32, at once where torch can (2.8 and later, on a GPU)."""
    if left.is_cuda and "dtype" in torch.ops.aten.mm.overloads():  # type: ignore[no-untyped-call]
        return torch.mm(left, right, out_dtype=torch.float32)
    return (left @ right).float()


class AutocastLayers:
    """The layers of a model that run on bf16 copies of their weights, whose gradients ``second_stream`` may make."""

    def __init__(self, model: nn.Module) -> None:
        self.second_stream = SecondStream()
        self.layers: list[nn.Conv2d | nn.Linear] = [
            layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear)) and plain(layer)
        ]
        self.weights = list(dict.fromkeys(layer.weight for layer in self.layers))  # one may be in several layers
        self._copies = {weight: torch.empty_like(weight, dtype=COPY, requires_grad=False) for weight in self.weights}
        self._seen: dict[Tensor, tuple[int, int]] = {}
        self._forwards = [self._forward(layer) for layer in self.layers]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the layers within on copies of their weights as these are now."""
        if self._copies:
            with torch.no_grad():
                torch._foreach_copy_(list(self._copies.values()), list(self._copies))
        self._seen = {weight: _state(weight) for weight in self._copies}
        with running_by(zip(self.layers, self._forwards, strict=True)):
            yield

    def _forward(self, layer: nn.Conv2d | nn.Linear) -> Callable[[Tensor], Tensor]:
        written: Callable[..., Tensor] = type(layer).forward

        def forward(x: Tensor) -> Tensor:
            weight, bias = layer.weight, layer.bias
            copy = self._copies.get(weight)
            batched = x.ndim == 4 if isinstance(layer, nn.Conv2d) else x.ndim >= 2
            if copy is None or self._seen[weight] != _state(weight) or not batched or not _known(x):
                return written(layer, x)
            made = (x.to(COPY), weight, bias, copy, self.second_stream)
            result: Tensor = Convolve.apply(*made, layer) if isinstance(layer, nn.Conv2d) else Multiply.apply(*made)  # type: ignore[no-untyped-call]
            return result

        return forward


def plain(layer: nn.Conv2d | nn.Linear) -> bool:
    """Return True if a call runs torch's own code alone, with an fp32 weight that is trained."""
    if type(layer) not in (nn.Conv2d, nn.Linear):
        return False
    if hooked(layer) or "forward" in layer.__dict__ or "weight" not in layer._parameters:
        return False
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or not _even_sides(layer)):
        return False
    return layer.weight.dtype == torch.float32 and layer.weight.requires_grad


def sides(layer: nn.Conv2d) -> tuple[int, ...]:
    """Return the padding above and to the left; as much is below and to the right."""
    if not isinstance(layer.padding, str):
        return tuple(map(int, layer.padding))
    if layer.padding == "valid":
        return (0, 0)
    return tuple(dilation * (size - 1) // 2 for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True))


def _even_sides(layer: nn.Conv2d) -> bool:
    pairs = zip(layer.dilation, layer.kernel_size, strict=True)
    return layer.padding != "same" or all(dilation * (size - 1) % 2 == 0 for dilation, size in pairs)


def _state(weight: Tensor) -> tuple[int, int]:
    """Return numbers that change with every change of the weight that torch knows of."""
    return weight._version, weight.data_ptr()


def _known(x: Tensor) -> bool:
    """Return True if autocast would compute this in bf16, and only plain gradients are needed."""
    kind = x.device.type
    casts = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == COPY
    plain_call = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return casts and plain_call and x.dtype in (torch.float32, COPY) and not torch._C._are_functorch_transforms_active()
