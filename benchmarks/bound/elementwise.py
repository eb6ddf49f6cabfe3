"""Bound on purpose: element-wise operations on tensors far larger than any cache. Expected: memory-bandwidth-bound."""

import torch
from device import CUDA, DEVICE, until_done

count = 2**30 if CUDA else 2**18
x = torch.ones(count, device=DEVICE)
y = torch.empty_like(x)

until_done(lambda: torch.add(x, 1.0, out=y), sync_every=20)
