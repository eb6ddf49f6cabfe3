"""The linear layers of several trials at once: batched products, and the kernels of classifier_head.py over a grid.

Shapes: T trials, B rows of each, I inputs, F features, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seatrial.train.kernels.classifier_head import ROWS, relu_source, source
from seatrial.train.kernels.nvrtc import launch
from seatrial.train.kernels.trial_parts import sum_parts


class TrialLinearRelu(torch.autograd.Function):
    """x [T, B, I], weight [T, F, I], bias [T, F] → [T, B, F] in ``x``'s type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight = weight.to(x.dtype)
        out = linear_relu(x, weight, bias)
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, weight, out = ctx.saved_tensors
        (trials, rows, features), dx = out.shape, torch.empty_like(out)
        sums = torch.empty(trials, features, device=x.device)
        arguments = (grads[0].contiguous(), out, dx, sums, rows, features)
        launch(relu_source(x.dtype), "relu_back", (-(-features // 32), trials), arguments)
        return torch.bmm(dx, weight), product(dx.transpose(1, 2), x), sums


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The layer's output, computed in ``x``'s type."""
    return torch.baddbmm(bias.to(x.dtype)[:, None], x, weight.to(x.dtype).transpose(1, 2)).relu_()


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b of each trial in fp32, from whatever these are."""
    if a.dtype == torch.float32 or not a.is_cuda:
        return torch.bmm(a, b).float()
    return torch.bmm(a, b, out_dtype=torch.float32)


class TrialCrossEntropy(torch.autograd.Function):
    """x [T, B, F], weight [T, K, F] and bias [T, K] (fp32), labels [T, B] → each trial's mean loss, [T]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        (trials, rows, features), classes = x.shape, weight.shape[1]
        losses = torch.empty(trials, rows, device=x.device)
        slopes = torch.empty(trials, rows, classes, device=x.device)
        text, grid = source(x.dtype, features, classes), (-(-rows // ROWS), trials)
        launch(text, "cross_entropy", grid, (x, weight, bias, labels, losses, slopes, rows))
        ctx.save_for_backward(x, weight, slopes)
        return losses.sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, slopes = ctx.saved_tensors
        (trials, rows, features), classes = x.shape, weight.shape[1]
        blocks, dx = -(-rows // ROWS), torch.empty_like(x)
        parts = torch.empty(trials, blocks, classes * features + classes, device=x.device)
        text, scale = source(x.dtype, features, classes), grads[0].float().contiguous()
        launch(text, "cross_entropy_back", (blocks, trials), (x, weight, slopes, scale, dx, parts, rows))
        of_weight, of_bias = sum_parts(parts, classes * features)
        return dx, of_weight.view(trials, classes, features), of_bias, None
