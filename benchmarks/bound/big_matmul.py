"""Bound on purpose: bf16 matmul 8192³. Expected: compute-bound, on an H200 with the tag power-cap."""

import torch
from device import CUDA, DEVICE, until_done

size = 8192 if CUDA else 256
a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
out = torch.empty_like(a)

until_done(lambda: torch.mm(a, b, out=out), sync_every=20)
