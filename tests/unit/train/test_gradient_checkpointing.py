"""Gradient checkpointing: the same gradients, dropout included, from fewer kept tensors."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from seatrial.train.gradient_checkpointing import recomputed  # noqa: E402

pytestmark = pytest.mark.torch


def test_same_gradients_from_fewer_kept_numbers():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 16))
    x = torch.randn(8, 16)
    results = []
    for call in (lambda: block(x), lambda: recomputed(block, x)):
        torch.manual_seed(1)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.numel()) or t, lambda t: t):
            out = call()
        block.zero_grad(set_to_none=True)
        out.square().sum().backward()
        results.append((out, [parameter.grad for parameter in block.parameters()], sum(kept)))
    (plain, plain_grads, plain_kept), (again, again_grads, again_kept) = results
    assert torch.equal(plain, again)
    assert all(torch.equal(a, b) for a, b in zip(plain_grads, again_grads, strict=True))
    assert again_kept < plain_kept / 4
